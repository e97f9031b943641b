# SPDX-License-Identifier: Apache-2.0
"""Whole files of each kind, small ones."""

import json
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attention_model import attention_model
from small_network import network
from smartmem_tvm import light
from smartmem_tvm._version import SCHEDULES, installed_version

TARGET = {"kind": "llvm", "mcpu": "x86-64", "num-cores": 1}


def _shapes() -> onnx.ModelProto:
    """Shape arithmetic, and operators whose results are as large as a constant says."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "four"], ["new"], axis=0),
        helper.make_node("Reshape", ["x", "new"], ["flat"]),
        helper.make_node("Expand", ["flat", "wide"], ["expanded"]),
        helper.make_node("Tile", ["expanded", "twice"], ["tiled"]),
        helper.make_node("ConstantOfShape", ["wide"], ["zeros"], value=helper.make_tensor("v", 1, [1], [0.5])),
        helper.make_node("Pad", ["zeros", "pads"], ["padded"]),
        helper.make_node("Slice", ["padded", "zero", "two", "zero", "one"], ["sliced"]),
        helper.make_node("Constant", [], ["c"], value_float=2.0),
        helper.make_node("Mul", ["sliced", "c"], ["scaled"]),
        helper.make_node("ReduceSum", ["tiled", "zero"], ["sum"]),
        helper.make_node("Add", ["scaled", "sum"], ["added"]),
        helper.make_node("Softmax", ["added"], ["y"], axis=-1),
    ]
    numbers = {"zero": [0], "one": [1], "two": [2], "four": [4], "wide": [2, 2, 4], "twice": [1, 1, 1]}
    numbers["pads"] = [0, 0, 0, 0, 0, 0]
    constants = [numpy_helper.from_array(np.array(each, "int64"), name) for name, each in numbers.items()]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 4]), ("y", [2, 2, 4]))]
    graph = helper.make_graph(nodes, "shapes", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _branches() -> onnx.ModelProto:
    """A model with an If, whose branches are graphs of their own, a convolution and a function of its own."""
    value = helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [helper.make_node(kind, ["conv"], [f"{name}_y"])], name, [], [value(f"{name}_y", 1, None)]
        )
        for name, kind in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("If", ["condition"], ["chosen"], **branches),
        helper.make_node("twice", ["chosen"], ["y"], domain="own"),
    ]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    function = helper.make_function("own", "twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("float32")
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(True), "condition")]
    ends = [value("x", 1, [1, 3, 6, 6]), value("y", 1, [1, 4, 6, 6])]
    graph = helper.make_graph(nodes, "branches", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[function])


def _light() -> onnx.ModelProto:
    """The attention model without the numbers of its weight."""
    recipe = light.Recipe(0.0, 1.0, -3.0, 3.0, 1)
    return light.strip(attention_model(), {"weight": recipe})


@cache
def models() -> list[bytes]:
    """ONNX models."""
    found = [attention_model(), _shapes(), _branches(), _light(), network()]
    for each in found:
        if not light.is_light(each):
            onnx.checker.check_model(each)
    return [each.SerializeToString() for each in found]

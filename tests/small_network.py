# SPDX-License-Identifier: Apache-2.0
"""A small network with each operator of a vision transformer: convolution, attention, norms, GELU."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WIDTH, _HEADS, _TOKENS, _CLASSES = 96, 4, 64, 10
# In the order of the nodes: name -> shape.
_WEIGHTS = {
    "stem": (_WIDTH, 3, 4, 4),
    "scale": (_WIDTH,),
    "shift": (_WIDTH,),
    "query": (_WIDTH, _WIDTH),
    "key": (_WIDTH, _WIDTH),
    "value": (_WIDTH, _WIDTH),
    "join": (_WIDTH, _WIDTH),
    "up": (_WIDTH, 4 * _WIDTH),
    "down": (4 * _WIDTH, _WIDTH),
    "classes": (_WIDTH, _CLASSES),
}
# Tensors of integers.
_INTEGERS = {
    "tokens": (1, _WIDTH, _TOKENS),
    "split": (1, _TOKENS, _HEADS, _WIDTH // _HEADS),
    "whole": (1, _TOKENS, _WIDTH),
    "middle": (1,),  # an axis
}


def network() -> onnx.ModelProto:
    """Return the network: image ``x`` (1, 3, 32, 32) in, ``y`` (1, 10) out; random weights keep numbers near 1."""
    random = np.random.default_rng(0)
    constants = [numpy_helper.from_array(np.array(each, "int64"), name) for name, each in _INTEGERS.items()]
    for name, shape in _WEIGHTS.items():
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape) / _WIDTH if name == "stem" else shape[0])
        constants.append(numpy_helper.from_array(values.astype("float32"), name))
    constants.append(numpy_helper.from_array(np.array(np.sqrt(_HEADS / _WIDTH), "float32"), "temperature"))
    nodes = [*_stem(), *_attention(), *_perceptron()]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (1, 3, 32, 32)), ("y", (1, 10)))]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _stem() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Conv", ["x", "stem"], ["patches"], strides=[4, 4]),
        helper.make_node("Reshape", ["patches", "tokens"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("LayerNormalization", ["columns", "scale", "shift"], ["normal"], axis=-1),
    ]


def _attention() -> list[onnx.NodeProto]:
    nodes = []
    for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["normal", name], [f"{name}_whole"]),
            helper.make_node("Reshape", [f"{name}_whole", "split"], [f"{name}_split"]),
            helper.make_node("Transpose", [f"{name}_split"], [f"{name}_heads"], perm=perm),
        ]
    return nodes + [
        helper.make_node("MatMul", ["query_heads", "key_heads"], ["products"]),
        helper.make_node("Mul", ["products", "temperature"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "value_heads"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["mixed_split"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["mixed_split", "whole"], ["mixed_whole"]),
        helper.make_node("MatMul", ["mixed_whole", "join"], ["joined"]),
        helper.make_node("Add", ["columns", "joined"], ["attended"]),
    ]


def _perceptron() -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", ["attended", "up"], ["wide"]),
        helper.make_node("Gelu", ["wide"], ["bent"]),
        helper.make_node("MatMul", ["bent", "down"], ["narrow"]),
        helper.make_node("Add", ["attended", "narrow"], ["features"]),
        helper.make_node("ReduceMean", ["features", "middle"], ["pooled"], keepdims=0),
        helper.make_node("MatMul", ["pooled", "classes"], ["y"]),
    ]

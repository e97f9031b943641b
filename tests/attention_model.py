# SPDX-License-Identifier: Apache-2.0
"""A tiny ONNX model with the operators of attention: two matmuls, a softmax, layout operators."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def attention_model(batch=2) -> onnx.ModelProto:
    """softmax(heads(x W)): two matmuls' worth of work, three layout operators, one float input ``x``."""
    random = np.random.default_rng(1)
    weight = random.standard_normal((8, 8)).astype("float32")
    constants = [
        numpy_helper.from_array(weight, "weight"),
        numpy_helper.from_array(np.array([0, 4, 2, 4], "int64"), "split"),
        numpy_helper.from_array(np.array([0, 4, 8], "int64"), "join"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["xw"], name="project"),
        helper.make_node("Reshape", ["xw", "split"], ["split_heads"], name="split_heads"),
        helper.make_node("Transpose", ["split_heads"], ["heads"], name="to_heads", perm=[0, 2, 1, 3]),
        helper.make_node("Softmax", ["heads"], ["weights"], name="soft", axis=-1),
        helper.make_node("Transpose", ["weights"], ["back"], name="from_heads", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "join"], ["joined"], name="join_heads"),
        helper.make_node("MatMul", ["joined", "weight"], ["y"], name="out"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4, 8])
    graph = helper.make_graph(nodes, "tiny", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model

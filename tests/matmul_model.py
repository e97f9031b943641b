# SPDX-License-Identifier: Apache-2.0
"""An ONNX file of few kernels, all of them worth tuning."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def matmuls(path: Path, *weights: tuple[int, int], seed: int = 0) -> Path:
    """Write a model of matmuls with a function between them that keeps them from being merged."""
    random, nodes, constants, last = np.random.default_rng(seed), [], [], "x"
    for number, shape in enumerate(weights):
        constants.append(numpy_helper.from_array(random.standard_normal(shape).astype("float32"), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"y{number}"]))
        last = f"y{number}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, weights[0][0]])
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, [64, weights[-1][1]])
    graph = helper.make_graph(nodes, "matmuls", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

PICTURE = np.random.default_rng(0).standard_normal((2, 3, 1, 5)).astype("float32")
GRID = np.random.default_rng(1).uniform(-2, 2, (2, 4, 3, 2)).astype("float32")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_one_row_reflects_into_itself(agree, mode):
    """As two equal rows do; ONNX Runtime and its reference divide by zero here."""
    from smartmem_tvm import compile as compile_
    from smartmem_tvm.frontend import from_onnx

    def run(picture):
        node = helper.make_node("GridSample", ["x", "g"], ["y"], mode=mode, padding_mode="reflection", align_corners=1)
        inputs = [
            helper.make_tensor_value_info(name, 1, value.shape) for name, value in {"x": picture, "g": GRID}.items()
        ]
        result = helper.make_tensor_value_info("y", 1, (2, 3, 4, 3))
        graph = helper.make_graph([node], "sampled", inputs, [result])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return compile_(from_onnx(model)).run(picture, GRID)[0]

    want = run(np.concatenate([PICTURE, PICTURE], 2))
    np.testing.assert_array_equal(run(PICTURE), want)

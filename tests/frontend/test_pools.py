# SPDX-License-Identifier: Apache-2.0
"""Pools with ``ceil_mode`` of which ONNX's inference counts a window too many."""

import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.frontend.pools import trim_pools


@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "sizes"),
    [
        ([1, 2], [2, 1], [0, 0, 0, 1], (2, 2)),  # the window is further than the padding
        ([2, 2], [2, 2], [0, 0, 1, 1], (4, 5)),  # one axis has a window in the padding, the other a whole one
        ([3, 3], [2, 2], [1, 1, 1, 1], (6, 5)),  # all windows count
        ([2, 1], [2, 3], [0, 0, 1, 0], (3, 4)),
        ([3, 1], [2, 2], None, (8, 2)),  # up along one axis and down along the other, of a pool without padding
    ],
)
@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
def test_shapes_are_those_of_the_result(build, run_tvm, run_onnx, operator, kernel, strides, pads, sizes):
    x = np.arange(np.prod((1, 2, *sizes)), dtype="float32").reshape(1, 2, *sizes)
    pool = helper.make_node(
        operator, ["x"], ["out"], ceil_mode=1, kernel_shape=kernel, strides=strides, **({"pads": pads} if pads else {})
    )
    inputs = {"x": (x.shape, "float32")}
    (pooled,) = run_onnx(build([pool], inputs, {"out": ((1, 2, None, None), "float32")}, opset=22), {"x": x})
    nodes = [pool, helper.make_node("Shape", ["out"], ["shape"])]
    model = build(nodes, inputs, {"out": (pooled.shape, "float32"), "shape": ((4,), "int64")}, opset=22)
    got, shape = run_tvm(from_onnx(model), {"x": x})
    np.testing.assert_allclose(got, pooled, rtol=1e-6)
    assert tuple(shape) == got.shape


def test_models_without_such_pools_stay(build):
    pool = helper.make_node("MaxPool", ["x"], ["out"], kernel_shape=[2, 2])
    model = build([pool], {"x": ((1, 1, 3, 3), "float32")}, {"out": ((1, 1, 2, 2), "float32")})
    assert trim_pools(model) is model

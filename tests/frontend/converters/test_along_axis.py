# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums_along_every_axis(build, assert_same, axis, reverse, dtype):
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=1 - reverse, reverse=reverse)
    tensor = ((2, 3, 5), dtype)
    model = build([node], {"x": tensor}, {"y": tensor}, {"axis": np.array(axis)})
    data = np.random.default_rng(0).integers(-9, 9, tensor[0]).astype(dtype)
    assert_same(model, from_onnx(model), {"x": data}, tolerance=0)


def test_a_running_sum_along_an_axis_known_at_run_time_is_refused(build):
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    with pytest.raises(UserError, match="its axis is known only at run time"):
        from_onnx(build([node], {"x": ((4,), "float32"), "axis": ((), "int64")}, {"y": ((4,), "float32")}))


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_each_sequence_is_turned_round_up_to_its_length(build, assert_same, axes):
    node = helper.make_node("ReverseSequence", ["x", "n"], ["y"], time_axis=axes[0], batch_axis=axes[1])
    tensor = ((4, 4, 2), "float32")
    model = build([node], {"x": tensor, "n": ((4,), "int64")}, {"y": tensor})
    data = np.arange(32, dtype="float32").reshape(tensor[0])
    assert_same(model, from_onnx(model), {"x": data, "n": np.array([4, 1, 3, 2])}, tolerance=0)

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError

X = np.random.default_rng(0).uniform(-3, 3, (2, 3, 7, 6)).astype("float32")


@pytest.mark.parametrize(
    ("sizes", "auto_pad"), [([13, 11], "SAME_UPPER"), ([14, 12], "SAME_LOWER"), ([16, 13], "NOTSET")]
)
def test_a_transposed_convolution_into_a_given_shape(agree, sizes, auto_pad):
    weight = np.random.default_rng(1).standard_normal((3, 4, 3, 3)).astype("float32")
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], output_shape=sizes, strides=[2, 2], auto_pad=auto_pad)
    agree(node, {"x": X}, {"w": weight}, tolerance=1e-4)


POOLS = {
    "plain": {"kernel_shape": [2, 2]},
    "pads": {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]},
    "ceil": {"kernel_shape": [2, 2], "strides": [2, 4], "ceil_mode": 1},
    "columns": {"kernel_shape": [2, 3], "strides": [2, 2], "storage_order": 1},
    "same": {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
}


@pytest.mark.parametrize("case", POOLS)
def test_the_places_of_maxima(agree, case):
    agree(helper.make_node("MaxPool", ["x"], ["y", "places"], **POOLS[case]), {"x": X}, tolerance=0)


def test_the_first_of_equal_maxima_counts(agree):
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    agree(node, {"x": np.ones((1, 2, 4, 4), "float32")}, tolerance=0)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_no_maximum_is_in_the_padding(agree, dtype):
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2], pads=[1, 1, 1, 1], dilations=[2, 1])
    agree(node, {"x": np.full((1, 2, 4, 4), np.iinfo(dtype).min, dtype)}, tolerance=0)


def test_space_to_depth_by_columns(agree):
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD")
    agree(node, {"x": X[:, :, :6]}, opset=28, tolerance=0, by_reference=True)


@pytest.mark.each_value
@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_pools_of_the_same_size(agree, op_type, auto_pad):
    agree(helper.make_node(op_type, ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], auto_pad=auto_pad), {"x": X})


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
def test_pools_that_leave_out_the_beginning_are_refused(agree, op_type):
    node = helper.make_node(op_type, ["x"], ["y"], kernel_shape=[1, 1], strides=[3, 4], auto_pad="SAME_UPPER")
    with pytest.raises(UserError, match="give pads"):
        agree(node, {"x": X[:, :, :3]})


LARGE = {
    "one axis": {"kernel_shape": [8, 2], "strides": [2, 1]},
    "both axes, dilated": {"kernel_shape": [5, 4], "strides": [4, 3], "dilations": [2, 2]},
    "padded": {"kernel_shape": [9, 3], "strides": [3, 2], "pads": [1, 0, 0, 1]},
    "without padding": {"kernel_shape": [8, 7], "strides": [2, 2], "auto_pad": "VALID"},
}


@pytest.mark.each_value
@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("case", LARGE)
def test_a_window_larger_than_the_picture_sees_what_there_is(agree, op_type, case):
    agree(helper.make_node(op_type, ["x"], ["y"], **LARGE[case]), {"x": X}, opset=22)


def test_how_much_padding_counts_in_a_mean_of_all_there_is_is_refused(agree):
    node = helper.make_node("AveragePool", ["x"], ["y"], **LARGE["padded"], count_include_pad=1)
    with pytest.raises(UserError, match="count_include_pad, or give more pads"):
        agree(node, {"x": X}, opset=22)


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
def test_a_window_too_large_for_any_result_is_refused(agree, op_type):
    node = helper.make_node(op_type, ["x"], ["y"], kernel_shape=[9, 2], strides=[2, 2])
    with pytest.raises(UserError, match="spans 9 places where there are 7 with the padding"):
        agree(node, {"x": X})


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("kernel", "strides", "pads"), [(3, 3, (0, 0)), (3, 4, (1, 1)), (1, 3, (0, 0)), (8, 5, (0, 0))]
)
@pytest.mark.parametrize("p", [1, 2])
def test_powers_of_a_last_window_that_is_not_whole(agree, kernel, strides, pads, p):
    attributes = {"kernel_shape": [kernel], "strides": [strides], "pads": pads, "ceil_mode": 1, "p": p}
    agree(helper.make_node("LpPool", ["x"], ["y"], **attributes), {"x": X[:, :, :, 0]}, opset=22)

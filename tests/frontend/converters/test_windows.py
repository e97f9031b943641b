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


def test_space_to_depth_by_columns(agree):
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD")
    agree(node, {"x": X[:, :, :6]}, opset=28, tolerance=0, by_reference=True)


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_pools_of_the_same_size(agree, op_type, auto_pad):
    agree(helper.make_node(op_type, ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], auto_pad=auto_pad), {"x": X})


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
def test_pools_that_leave_out_the_beginning_are_refused(agree, op_type):
    node = helper.make_node(op_type, ["x"], ["y"], kernel_shape=[1, 1], strides=[3, 4], auto_pad="SAME_UPPER")
    with pytest.raises(UserError, match="give pads"):
        agree(node, {"x": X[:, :, :3]})

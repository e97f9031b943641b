# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx


def _fold(build, columns, **attributes):
    constants = {"image": np.array([7, 8]), "block": np.array([3, 2])}
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], name="fold", **attributes)
    tensors = {"x": ((2, 12, columns), "float32")}, {"y": ((2, 2, 7, 8), "float32")}
    return build([node], *tensors, constants, opset=18)


@pytest.mark.parametrize(
    ("columns", "attributes"),
    [
        (35, {}),
        (16, {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
        (24, {"dilations": [2, 1], "pads": [1, 0, 0, 0], "strides": [1, 1]} | {"dilations": [2, 2]}),
    ],
)
def test_overlapping_blocks_add_up(build, assert_same, columns, attributes):
    model = _fold(build, columns, **attributes)
    assert_same(model, from_onnx(model))


def test_columns_of_another_number_are_refused(build):
    with pytest.raises(UserError, match="12x30 columns are not those of 35 blocks of 6 numbers"):
        from_onnx(_fold(build, 30))

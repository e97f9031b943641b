# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import check_inputs, from_onnx, input_spec, output_names

SPEC = {"image": ((1, 3), "float32"), "ids": ((4,), "int64")}


def arrays(**changes):
    return {"image": np.zeros((1, 3), "float32"), "ids": np.arange(4), **changes}


@I.ir_module
class Foreign:
    """A module that this front end did not make."""

    @R.function
    def main(a: R.Tensor((2, 3), "float16"), b: R.Tensor((), "int32")):
        return (a, b)


def test_arrays_come_back_contiguous_and_in_order():
    transposed = np.asfortranarray(np.arange(6, dtype="float32").reshape(2, 3))
    spec = {"a": ((), "int64"), "b": ((2, 3), "float32")}
    first, second = check_inputs(spec, {"b": transposed, "a": np.array(7)})
    assert first.shape == () and first == 7
    assert second.flags.c_contiguous
    np.testing.assert_array_equal(second, transposed)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (arrays(picture=np.zeros(1)), ["'picture' is no input", "'image' (1x3 float32)", "'ids' (4 int64)"]),
        ({"image": np.zeros((1, 3), "float32")}, ["'ids' has no array"]),
        (arrays(image=np.zeros((3, 1), "float32")), ["'image' has shape 3x1", "takes 1x3"]),
        (arrays(image=np.zeros((1, 3))), ["'image' has dtype float64", "astype('float32')"]),
        (arrays(ids=np.arange(4, dtype="int32")), ["'ids' has dtype int32", "takes int64"]),
    ],
)
def test_arrays_that_do_not_fit(given, parts):
    with pytest.raises(UserError) as caught:
        check_inputs(SPEC, given)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_module_can_stand_for_its_spec(relu_model):
    mod = from_onnx(relu_model)
    with pytest.raises(UserError, match="'x' has no array"):
        check_inputs(mod, {})


def test_a_module_from_elsewhere():
    assert input_spec(Foreign) == {"a": ((2, 3), "float16"), "b": ((), "int32")}
    assert output_names(Foreign) == ["output_0", "output_1"]

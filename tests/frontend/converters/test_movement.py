# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from smartmem_tvm.errors import UserError

X = np.random.default_rng(0).uniform(-3, 3, (3, 4)).astype("float32")


@pytest.mark.parametrize("axis", [-3, 1])
def test_one_hot_on_any_axis(agree, axis):
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"], axis=axis)
    indices = np.array([[0, -1, 5], [7, 3, -6]])
    agree(node, {"i": indices}, {"d": np.int64(6), "v": np.array([0.5, 2], "float32")}, tolerance=0)
    agree(node, {"i": indices, "v": np.array([-1, 3])}, {"d": np.int64(6)}, tolerance=0, by_reference=True)


def test_one_hot_of_unknown_depth_is_refused(agree):
    with pytest.raises(UserError, match="depth"):
        node = helper.make_node("OneHot", ["i", "d", "v"], ["y"])
        agree(node, {"i": np.arange(3), "d": np.array(3)}, {"v": np.array([0, 1])}, by_reference=True)


@pytest.mark.parametrize("k", [-1])
def test_eye_like_in_another_type(agree, k):
    agree(helper.make_node("EyeLike", ["x"], ["y"], k=k, dtype=TensorProto.INT32), {"x": X}, tolerance=0)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_of_uint64(agree, largest):
    x = np.array([[2**63 + 5, 1, 2**64 - 1, 0, 2**63]], "uint64")
    agree(
        helper.make_node("TopK", ["x", "k"], ["y", "i"], largest=largest),
        {"x": x},
        {"k": np.array([3])},
        tolerance=0,
        by_reference=True,
    )


@pytest.mark.parametrize(
    ("given", "wanted"), [("float32", "int32"), ("int16", "bfloat16"), ("uint8", "bool"), ("bool", "uint8")]
)
def test_the_same_bits_as_another_type(build, run_tvm, given, wanted):
    from smartmem_tvm.frontend import from_onnx

    target = np.dtype(getattr(ml_dtypes, wanted, wanted))
    x = (np.arange(12).reshape(3, 4) % 2 if "bool" in (given, wanted) else X * 1000).astype(given)
    node = helper.make_node("BitCast", ["x"], ["y"], to=helper.np_dtype_to_tensor_dtype(target))
    mod = from_onnx(build([node], {"x": (x.shape, x.dtype)}, {"y": (x.shape, target)}, opset=26))
    np.testing.assert_array_equal(run_tvm(mod, {"x": x})[0].view("u1"), x.view("u1"))


@pytest.mark.parametrize("pads", [[1, 0, 2, 3], [-1, 1, 1, -2]])
def test_a_border_of_a_number_known_at_run_time(agree, pads):
    node = helper.make_node("Pad", ["x", "p", "v"], ["y"])
    agree(node, {"x": X, "v": np.array(1.5, "float32")}, {"p": np.array(pads)}, tolerance=0)


def test_a_part_without_elements_is_left_out(agree):
    node = helper.make_node("Concat", ["x", "e"], ["y"], axis=0)
    agree(node, {"x": X}, {"e": np.empty((0, 4), "float32")}, tolerance=0)

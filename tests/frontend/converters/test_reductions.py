# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError

X = np.random.default_rng(0).uniform(-3, 3, (3, 4, 5)).astype("float32")


def _one(op_type, names="x", **attributes):
    return helper.make_node(op_type, list(names), ["out"], **attributes)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_the_extreme_of_truth_values(agree, op_type):
    agree(_one(op_type, "xa"), {"x": X > 2}, {"a": np.array([1])})


@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceMean"])
def test_reductions_of_integers_that_need_fractions(agree, op_type):
    agree(_one(op_type, "xa", keepdims=0), {"x": np.arange(1, 25, dtype="int32").reshape(4, 6)}, {"a": np.array([1])})


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_the_place_of_the_extreme_of_bfloat16(build, run_tvm, op_type, last):
    from smartmem_tvm.frontend import from_onnx

    x = np.round(X).astype(ml_dtypes.bfloat16)
    wide, tensor = x.astype("float32"), (X.shape, x.dtype)
    node = _one(op_type, axis=1, select_last_index=last, keepdims=0)
    mod = from_onnx(build([node], {"x": tensor}, {"out": ((3, 5), "int64")}, opset=22))
    find = np.argmax if op_type == "ArgMax" else np.argmin
    wanted = 3 - find(wide[:, ::-1], 1) if last else find(wide, 1)
    np.testing.assert_array_equal(run_tvm(mod, {"x": x})[0], wanted)


def test_hardmax_of_bfloat16(build, run_tvm):
    from smartmem_tvm.frontend import from_onnx

    x = X.astype(ml_dtypes.bfloat16)
    mod = from_onnx(build([_one("Hardmax")], {"x": (X.shape, x.dtype)}, {"out": (X.shape, x.dtype)}, opset=22))
    got = run_tvm(mod, {"x": x})[0].astype("float32")
    np.testing.assert_array_equal(got, np.eye(5)[x.astype("float32").argmax(-1)])


@pytest.mark.parametrize(("p", "axis"), [(1, 0), (2, -1)])
def test_lp_normalization(agree, p, axis):
    x = X.copy()
    x[:, 0] = 0
    agree(_one("LpNormalization", p=p, axis=axis), {"x": x})


@pytest.mark.parametrize(("size", "dtype"), [(1, "float32"), (3, "float64")])
def test_determinants(agree, size, dtype):
    x = np.random.default_rng(size).standard_normal((2, 3, size, size)).astype(dtype)
    x[0, 0, 0, 0] = 0  # needs a pivot
    agree(_one("Det"), {"x": x}, tolerance=1e-5, by_reference=True)


def test_a_singular_matrix_has_the_determinant_zero(agree):
    agree(_one("Det"), {"x": np.ones((1, 2, 2), "float32")})


def test_large_determinants_are_refused(agree):
    with pytest.raises(UserError, match="20x20"):
        agree(_one("Det"), {"x": np.ones((20, 20), "float32")})


@pytest.mark.parametrize(("reverse", "exclusive"), [(0, 0), (1, 1)])
def test_running_products(agree, reverse, exclusive):
    node = _one("CumProd", "xa", reverse=reverse, exclusive=exclusive)
    agree(node, {"x": X}, {"a": np.array(-2)}, opset=26, by_reference=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_a_reduction_along_no_axes_in_any_type(agree, dtype):
    node = _one("ReduceSum", "xa", noop_with_empty_axes=1)
    agree(node, {"x": X.astype(dtype)}, {"a": np.zeros(0, "int64")}, by_reference=True)

# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx

X = np.random.default_rng(0).uniform(-3, 3, (4, 6))


def _one(op_type, names="x", **attributes):
    return helper.make_node(op_type, list(names), ["out"], **attributes)


@pytest.mark.parametrize("exponent", [0, 1, 13])
def test_a_known_power_of_integers_is_exact(agree, exponent):
    base = np.array([[-3, 7, 0, 1, 23]])
    agree(_one("Pow", "xp"), {"x": base}, {"p": np.int64(exponent)}, tolerance=0, by_reference=True)


@pytest.mark.parametrize(
    ("base", "exponent"), [("int32", "int32"), ("int64", "float32"), ("float32", "int64"), ("float32", "float64")]
)
def test_powers_of_two_types_have_the_type_of_the_base(agree, base, exponent):
    x = np.abs(X * 2).astype(base) + np.dtype(base).type(1)
    agree(_one("Pow", "xp"), {"x": x, "p": np.arange(6, dtype=exponent)})


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_remainder_has_the_sign_of_the_divisor_even_if_that_is_infinite(agree, dtype):
    x = np.array([-7.5, 7.5, -1, 1, 0, 6], dtype)
    y = np.array([2, -2, np.inf, -np.inf, 3, -3], dtype)
    agree(_one("Mod", "xy"), {"x": x, "y": y}, opset=28, by_reference=True)


@pytest.mark.parametrize(("direction", "dtype"), [("LEFT", "uint8"), ("RIGHT", "uint64"), ("LEFT", "uint32")])
def test_bits_that_are_shifted_out_are_gone(build, run_tvm, direction, dtype):
    from smartmem_tvm.frontend import from_onnx

    bits = np.dtype(dtype).itemsize * 8
    x, shift = np.full(4, 200, dtype), np.array([1, bits - 1, bits, 200], dtype)
    model = build(
        [_one("BitShift", "xs", direction=direction)], {"x": ((4,), dtype), "s": ((4,), dtype)}, {"out": ((4,), dtype)}
    )
    wanted = np.left_shift(x, shift) if direction == "LEFT" else np.right_shift(x, shift)
    wanted[2:] = 0
    np.testing.assert_array_equal(run_tvm(from_onnx(model), {"x": x, "s": shift})[0], wanted)


@pytest.mark.parametrize("slope", [(5,), (4, 5), (1, 2), (1, 1, 6)])
def test_slopes_that_do_not_fit_are_refused(build, slope):
    inputs = {"x": ((4, 6), "float32"), "s": (slope, "float32")}
    with pytest.raises(UserError, match=r"operator PRelu .* slopes of shape .* do not fit numbers of shape 4x6"):
        from_onnx(build([_one("PRelu", "xs")], inputs, {"out": (None, "float32")}))


@pytest.mark.parametrize("signs", [(0, 0), (0, 1), (1, 0)])
def test_infinities_of_the_asked_sign(agree, signs):
    x = np.array([-np.inf, np.inf, np.nan, 1], "float32")
    agree(_one("IsInf", detect_negative=signs[0], detect_positive=signs[1]), {"x": x})


def test_truth_values_are_compared(agree):
    x, y = (X > 0), (X > 1)
    agree(_one("Equal", "xy"), {"x": x, "y": y})


@pytest.mark.parametrize("dtype", ["uint64"])
def test_the_sign_of_unsigned_numbers(agree, dtype):
    agree(_one("Sign"), {"x": np.array([0, 1, 200], dtype)})


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_shrink_of_integers(agree, dtype):
    agree(_one("Shrink", lambd=1.5, bias=1.5), {"x": np.arange(6).astype(dtype)})


@pytest.mark.parametrize(
    ("op_type", "dtype"),
    [
        ("Elu", "float16"),
        ("Selu", "float64"),
        ("ThresholdedRelu", "bfloat16"),
        ("Asinh", "float16"),
        ("Elu", "float64"),
    ],
)
def test_activations_in_other_types_than_float32(agree, op_type, dtype):
    x = X.astype(getattr(ml_dtypes, dtype, dtype))
    agree(_one(op_type), {"x": x}, tolerance={"float16": 5e-3, "bfloat16": 3e-2}.get(dtype, 1e-7), by_reference=True)


@pytest.mark.pairwise
@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
@pytest.mark.parametrize("count", [1, 3, 11])
def test_several_tensors_are_broadcast(agree, op_type, dtype, count):
    if op_type == "Sum" and dtype == "int8":
        dtype = "float16"
    shapes = [(4, 6), (6,), (2, 4, 1), (1, 1)]
    inputs = {
        f"x{n}": (n + X.flat[: np.prod(shapes[n % 4])]).reshape(shapes[n % 4]).astype(dtype) for n in range(count)
    }
    agree(_one(op_type, inputs), inputs, by_reference=True, tolerance=1e-2 if dtype == "float16" else 1e-5)


def test_a_few_tensors_are_not_stacked(build, operators):
    from smartmem_tvm.frontend import from_onnx

    inputs = dict.fromkeys("abc", (X.shape, "float32"))
    model = build([_one("Max", "abc")], inputs, {"out": (X.shape, "float32")})
    assert operators(from_onnx(model)) == ["maximum", "maximum"]


@pytest.mark.pairwise
@pytest.mark.parametrize("op_type", ["Max", "Mean", "Min", "Sum"])
@pytest.mark.parametrize("count", [1, 2, 11])
@pytest.mark.parametrize("shapes", [[(), (1,)], [(1,), ()], [(4, 6), (6,), (2, 4, 1)], [(6,)]])
def test_tensors_of_several_ranks(agree, op_type, count, shapes):
    shapes = [shapes[n % len(shapes)] for n in range(count)]
    inputs = {f"x{n}": (n + X.flat[: int(np.prod(s))]).reshape(s).astype("float32") for n, s in enumerate(shapes)}
    agree(_one(op_type, inputs), inputs)


@pytest.mark.parametrize("infinite", [np.inf, -np.inf, np.nan])
def test_gemm_does_not_read_what_beta_takes_away(agree, infinite):
    inputs = {"a": X[:2].astype("float32"), "b": (X[:, :3].T @ X).astype("float32")}
    inputs["c"] = np.full((2, 6), infinite, "float32")
    inputs["b"] = np.vstack([inputs["b"], inputs["b"]])
    agree(_one("Gemm", inputs, beta=0.0), inputs)


def test_a_threshold_of_infinite_numbers(agree):
    x = np.array([-np.inf, np.inf, 3, 0.5], "float32")
    agree(_one("ThresholdedRelu", alpha=1.0), {"x": x})


def test_hard_swish_of_doubles_has_the_sixth_of_a_float(agree):
    agree(_one("HardSwish"), {"x": X}, tolerance=1e-12, by_reference=True)


def test_gelu_of_doubles_has_the_constants_of_a_float(agree):
    agree(_one("Gelu", approximate="tanh"), {"x": X.astype("float64")}, tolerance=1e-12, by_reference=True, opset=20)


def test_powers_of_halves_in_a_pool_do_not_overflow(agree):
    x = (30 * X).reshape(1, 1, 4, 6).astype("float16")
    agree(_one("LpPool", kernel_shape=[2, 2], p=3), {"x": x}, tolerance=2e-3)
    agree(_one("GlobalLpPool", p=3), {"x": x}, tolerance=2e-3, opset=21)


def test_zero_times_infinity_is_no_number(agree):
    x = np.array([np.inf, np.nan, 3, 0], "float32")
    for names in ("xz", "zx"):
        agree(_one("Mul", names), {"x": x}, {"z": np.zeros((1, 1), "float32")}, tolerance=0)


def test_zero_by_zero_is_no_number(agree):
    x = np.array([np.inf, np.nan, 3, 0, -1], "float32")
    agree(_one("Div", "zx"), {"x": x}, {"z": np.float32(0)}, tolerance=0)


def test_celu_of_a_scalar_is_one(agree):
    for x in (np.array(-0.7, "float32"), np.array([-3, 200, np.inf, np.nan], "float32")):
        agree(_one("Celu", alpha=0.5), {"x": x})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [3, 4])
def test_cubes_are_products(agree, build, operators, dtype, exponent):
    x = np.random.default_rng(0).uniform(-3, 3, (2, 5)).astype(dtype)
    power = {"p": np.array(exponent, dtype)}
    agree(helper.make_node("Pow", ["x", "p"], ["y"]), {"x": x}, power, tolerance=1e-6)
    tensor = (x.shape, dtype)
    model = build([helper.make_node("Pow", ["x", "p"], ["y"])], {"x": tensor}, {"y": tensor}, power)
    assert operators(from_onnx(model)) == ["multiply", "multiply"]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_numbers_without_a_sign_are_negated_as_torch_exports_them(build, run_tvm, dtype):
    from smartmem_tvm.frontend import from_onnx

    x = np.array([0, 1, 7, 2 ** (8 * np.dtype(dtype).itemsize) - 1], dtype)
    model = build([_one("Neg", "x")], {"x": ((4,), dtype)}, {"out": ((4,), dtype)})
    np.testing.assert_array_equal(run_tvm(from_onnx(model), {"x": x})[0], -x)

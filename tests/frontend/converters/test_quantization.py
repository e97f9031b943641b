# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check, integers, model_of

TYPES = ["uint8", "int8", "uint16", "int16", "int4", "uint4"]
SHAPE = (3, 5, 4)
# Kind -> shape of the scale, attributes.
FORMS = {"tensor": ((), {}), "axis": ((5,), {"axis": -2}), "blocks": ((3, 3, 4), {"axis": 1, "block_size": 2})}


def _number(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _parameters(random, dtype, shape, zero):
    scale = np.asarray(random.choice([0.5, 0.3, 1.7], shape), "float32")
    return {"scale": scale, **({"zero": integers(random, dtype, shape)} if zero else {})}


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_quantize_and_back_bit_for_bit(dtype, form):
    """With ties, with numbers beyond the ends, with and without zero points, known and unknown parameters."""
    shape, attributes = FORMS[form]
    random = np.random.default_rng(hash((dtype, form)) % 100)
    x = np.round(random.standard_normal(SHAPE) * 200).astype("float32") / 4
    for zero in (True, False):
        given = _parameters(random, dtype, shape, zero)
        stated = {} if zero else {"output_dtype": _number(dtype)}
        nodes = [
            helper.make_node("QuantizeLinear", ["x", *given], ["q"], **attributes, **stated),
            helper.make_node("Cast", ["q"], ["y"], to=TensorProto.INT32),
            helper.make_node("DequantizeLinear", ["q", *given], ["back"], **attributes),
        ]
        unknown = {"scale": given.pop("scale")} if zero else {}
        check(nodes, {"x": x, **unknown}, {"y": "int32", "back": "float32"}, given, tolerance=1e-7)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 7), ("int8", -128), ("int16", 300), ("uint16", 60000)])
def test_numbers_far_beyond_the_ends(dtype, zero):
    """The zero point is added before the bounds are compared: to infinity, and to floats without a bit for it."""
    x = np.array([np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9, 2.5**30, 0.5, -0.5], "float32")
    given = {"scale": np.float32(0.5), "zero": np.asarray(zero, dtype)}
    check([helper.make_node("QuantizeLinear", ["x", *given], ["y"])], {"x": x}, {"y": dtype}, given)


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_a_zero_point_known_at_run_time(dtype):
    random = np.random.default_rng(0)
    x = (random.standard_normal(SHAPE) * 50).astype("float32")
    given = _parameters(random, dtype, (), True)
    check([helper.make_node("QuantizeLinear", ["x", *given], ["y"])], {"x": x, **given}, {"y": dtype})


def test_division_is_not_made_a_product():
    """-2.5 / (5 / 255) is less than -127.5, but more than that if the inverse is rounded first."""
    x = np.array([0, 2, -3, -2.5, 1.34, 0.5], "float32")
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    check([node], {"x": x}, {"y": "uint8", "scale": "float32", "zero": "uint8"})


@pytest.mark.parametrize("factor", [0, 1, -1, 1e-3])
def test_dynamic_quantization(factor):
    x = np.abs(np.random.default_rng(0).standard_normal((7, 9))).astype("float32") * np.float32(factor)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    check([node], {"x": x}, {"y": "uint8", "scale": "float32", "zero": "uint8"})


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
@np.errstate(all="ignore")
def test_quantize_to_small_floats(dtype):
    x = (np.random.default_rng(0).standard_normal(100) * 300).astype("float32")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["y"], output_dtype=_number(dtype)),
        helper.make_node("DequantizeLinear", ["y", "scale"], ["back"]),
    ]
    outputs = {"y": (dtype, x.shape), "back": ("float32", x.shape)}
    model = model_of(nodes, {"x": x}, outputs, {"scale": np.float32(2)}, opset=23)
    got, back = sm.compile(sm.from_onnx(model)).run(x)
    largest = float(ml_dtypes.finfo(dtype).max)
    wanted = np.clip(x / 2, -largest, largest).astype(dtype)
    np.testing.assert_array_equal(got.astype("float32"), wanted.astype("float32"))
    np.testing.assert_array_equal(back, wanted.astype("float32") * 2)


def test_the_operators_of_onnx_runtime_are_the_same():
    random = np.random.default_rng(0)
    x, given = (random.standard_normal(SHAPE) * 50).astype("float32"), _parameters(random, "int8", (5,), True)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *given], ["q"], domain=RUNTIME, axis=1),
        helper.make_node("DequantizeLinear", ["q", *given], ["y"], domain=RUNTIME, axis=1),
    ]
    check(nodes, {"x": x}, {"q": "int8", "y": "float32"}, given, tolerance=1e-7)


@pytest.mark.parametrize(
    ("scale", "attributes", "reason"),
    [
        (np.ones(4, "float32"), {"axis": 1}, "shape .4. for an axis of 5"),
        (np.ones(5, "float32"), {"axis": 3}, "axis is 3"),
        (np.ones((3, 2, 4), "float32"), {"axis": 1, "block_size": 2}, "blocks of 2"),
        (np.ones((), "float16"), {"axis": 1}, "float32 and its scale float16"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(scale, attributes, reason):
    x = np.zeros(SHAPE, "float32")
    node = helper.make_node("QuantizeLinear", ["x", "scale"], ["y"], name="quantize", **attributes)
    with pytest.raises(sm.UserError, match=rf"quantize.*{reason}"):
        sm.from_onnx(model_of([node], {"x": x}, {"y": ("uint8", SHAPE)}, {"scale": scale}, opset=23))

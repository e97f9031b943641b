# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import smartmem_tvm as sm
from against_onnxruntime import check, model_of

PLAIN = ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "uint16", "int32", "int64", "uint64", "bool"]
FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]
INTEGERS = ["int4", "uint4", "int2", "uint2"]
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61439, 61440, 240, 248, 1e-45, 6, 7, 0.25, 0.75]


def _bits(count=4000):
    """Any float32, numbers around 1 and 100, and edges."""
    random = np.random.default_rng(0)
    any_bits = random.integers(0, 2**32, count, dtype="uint64").astype("uint32").view("float32")
    usual = random.standard_normal((2, count)) * [[1], [100]]
    return np.concatenate([any_bits, usual.astype("float32").ravel(), np.array(EDGES, "float32")])


def _number(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _cast(array, to, opset=25, **attributes):
    node = helper.make_node("Cast", ["x"], ["y"], to=_number(to), **attributes)
    model = model_of([node], {"x": array}, {"y": (to, array.shape)}, opset=opset)
    return sm.compile(sm.from_onnx(model)).run(array)[0]


def _assert_same_bits(got, want):
    assert got.dtype == want.dtype
    got, want = (each.view(f"uint{8 * each.dtype.itemsize}") for each in (got, want))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("to", FLOATS)
@np.errstate(all="ignore")
def test_small_floats_are_rounded_as_ml_dtypes_rounds(to):
    x = _bits()
    _assert_same_bits(_cast(x, to, saturate=0), x.astype(to))


@pytest.mark.parametrize("to", FLOATS)
@np.errstate(all="ignore")
def test_small_floats_saturate(to):
    x = _bits()
    got = _cast(x, to).astype("float32")
    largest = float(ml_dtypes.finfo(to).max)
    wanted = np.clip(x, -largest, largest).astype(to).astype("float32")
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [*FLOATS, "float8_e8m0fnu"])
def test_every_small_float_is_read(dtype):
    count = 2 ** ml_dtypes.finfo(dtype).bits
    x = np.arange(count, dtype="uint8").view(dtype)
    np.testing.assert_array_equal(_cast(x, "float32"), x.astype("float32"))


@pytest.mark.parametrize(
    ("mode", "saturate", "wanted"),
    [
        ("up", 1, [2, 2, 4, 2**127, 2**127, 2**-127, np.nan]),
        ("down", 1, [1, 2, 2, 2**127, 2**127, 2**-127, np.nan]),
        ("nearest", 1, [2, 2, 2, 2**127, 2**127, 2**-127, np.nan]),
        ("nearest", 0, [2, 2, 2, np.nan, np.nan, np.nan, np.nan]),
    ],
)
def test_scales_of_blocks_are_powers_of_two(mode, saturate, wanted):
    x = np.array([1.5, 2, 2.25, 3e38, np.inf, 0, np.nan], "float32")
    got = _cast(x, "float8_e8m0fnu", saturate=saturate, round_mode=mode)
    np.testing.assert_array_equal(got.astype("float32"), np.array(wanted, "float32"))


@pytest.mark.parametrize("to", INTEGERS)
def test_integers_of_few_bits(to):
    """Floats are rounded, halves away from zero, and keep their last bits, as in ONNX Runtime."""
    x = np.arange(-20, 20, 0.5, "float32")
    whole = np.copysign(np.floor(np.abs(x) + 0.5), x)
    np.testing.assert_array_equal(_cast(x, to), whole.astype("int8").astype(to))
    numbers = np.arange(-8, 8, dtype="int8").astype(to)
    np.testing.assert_array_equal(_cast(numbers, "float16"), numbers.astype("float16"))


@pytest.mark.parametrize("source", PLAIN)
@np.errstate(all="ignore")
def test_casts_of_plain_types_are_those_of_onnx_runtime(source):
    """In range; what is out of range has the last bits of an int32 or int64, and NaN is their smallest number."""
    random = np.random.default_rng(1)
    x = np.concatenate([random.standard_normal(50) * 100, [0, 0.49, 0.5, 127.5, -128.9]]).astype("float32")
    x = np.abs(x) if source.startswith("u") else np.append(x, np.float32(np.nan))
    targets = [each for each in PLAIN if each not in (source, "bfloat16")]
    nodes = [helper.make_node("Cast", ["x"], ["m"], to=_number(source))]
    nodes += [helper.make_node("Cast", ["m"], [to], to=_number(to)) for to in targets]
    if source.startswith(("int", "float", "bfloat")):  # ONNX Runtime's own result for these depends on the machine
        targets = [each for each in targets if not each.startswith("uint")]
        nodes = [node for node in nodes if node.output[0] in ("m", *targets)]
    check(nodes, {"x": x}, {to: to for to in targets}, tolerance=0)


def test_bfloat16_is_rounded_even_where_it_is_read_at_once():
    x = _bits(500)
    nodes = [
        helper.make_node("Cast", ["x"], ["m"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
    ]
    got = sm.compile(sm.from_onnx(model_of(nodes, {"x": x}, {"y": ("float32", x.shape)}))).run(x)[0]
    np.testing.assert_array_equal(got, x.astype("bfloat16").astype("float32"))


def test_cast_like_takes_the_type_of_its_second_input():
    like, x = np.zeros(3, "float8_e5m2"), np.linspace(-3, 3, 7, dtype="float32")
    node = helper.make_node("CastLike", ["x", "like"], ["y"])
    model = model_of([node], {"x": x, "like": like}, {"y": ("float8_e5m2", x.shape)})
    _assert_same_bits(sm.compile(sm.from_onnx(model)).run(x, like)[0], x.astype("float8_e5m2"))


def test_bits_of_one_type_are_read_as_another():
    x = _bits(100)
    node = helper.make_node("BitCast", ["x"], ["y"], to=TensorProto.INT32)
    model = model_of([node], {"x": x}, {"y": ("int32", x.shape)}, opset=26)
    np.testing.assert_array_equal(sm.compile(sm.from_onnx(model)).run(x)[0], x.view("int32"))


def test_strings_are_refused():
    node = helper.make_node("Cast", ["x"], ["y"], name="text", to=TensorProto.STRING)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, [3])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    with pytest.raises(sm.UserError, match=r"Output 'y'.*type string"):
        sm.from_onnx(model)
    assert onnx.checker.check_model(model) is None

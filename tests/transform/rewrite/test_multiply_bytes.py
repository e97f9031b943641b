# SPDX-License-Identifier: Apache-2.0
"""MultiplyBytes: products of dequantized bytes as exact sums of integers, and what stays in floats."""

import numpy as np
import pytest
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator

from against_onnxruntime import integers, model_of
from covering import seeds
from smartmem_tvm import compile, from_onnx
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.schedule.gpu.byte_price import bytes_over_floats
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import MultiplyBytes
from smartmem_tvm.transform.rewrite import multiply_bytes

WITH = parse_target('{"kind": "llvm", "mcpu": "cascadelake", "num-cores": 2}')
"""A processor with VNNI; this machine need not be one."""
PAIRED = parse_target('{"kind": "llvm", "mcpu": "haswell", "num-cores": 2}')
"""A processor that multiplies two 16-bit integers at once, and no four bytes."""


def quantized(random: np.random.Generator, shape: tuple, dtype: str, along: int | None) -> tuple[np.ndarray, dict]:
    """Bytes with a scale and a zero point, or several along an axis: attributes and numbers."""
    count = (shape[along],) if along is not None else ()
    array = integers(random, dtype, shape)
    zero = integers(random, dtype, count) if random.random() < 0.7 else np.zeros(count, dtype)
    return array, {"scale": (random.random(count) * 0.1 + 0.01).astype("float32"), "zero": np.asarray(zero, dtype)}


def weights_of(random: np.random.Generator, shape: tuple, along: int | None) -> tuple[np.ndarray, dict]:
    """Signed bytes with the zero point 0, as quantizers make weights, or of 128 if they are unsigned."""
    array, more = quantized(random, shape, dtype := str(random.choice(["int8", "uint8"])), along)
    return array, more | {"zero": np.full(more["zero"].shape, 0 if dtype == "int8" else 128, dtype)}


def exact(array: np.ndarray, more: dict, axis: int | None) -> np.ndarray:
    """What bytes stand for, in float64."""
    shape = [-1 if at == axis else 1 for at in range(array.ndim)] if axis is not None else [1] * array.ndim
    scale, zero = (more[name].astype("float64").reshape(shape) for name in ("scale", "zero"))
    return (array - zero) * scale


def draw(random: np.random.Generator) -> tuple:
    """A MatMul, a Gemm or a Conv of two dequantized tensors: nodes, input, constants, and the exact operands."""
    size = lambda *more: int(random.choice([1, 3, 4, 8, 12, 16, 17, 20, 31, 64, *more]))  # noqa: E731
    kind = str(random.choice(["MatMul", "Gemm", "Conv"]))
    left, each = str(random.choice(["uint8", "int8"])), random.random() < 0.6
    attributes, rank = {}, int(random.integers(1, 4))
    if kind == "Conv":
        group = int(random.choice([1, 1, 1, 2, 5]))
        kernel, strides = (random.integers(1, 4, rank).tolist() for _ in range(2))
        dilations, pads = random.integers(1, 3, rank).tolist(), random.integers(0, 3, 2 * rank).tolist()
        sizes = [max(int(random.integers(1, 9)), (k - 1) * d + 1) for k, d in zip(kernel, dilations)]
        inside = int(random.choice([1, 3, 4, 8, 16])) if group == 1 else int(random.choice([1, 1, 4]))
        x_shape, w_shape = (int(random.integers(1, 3)), inside * group, *sizes), (size() * group, inside, *kernel)
        axis = 0
        attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": group}
    else:
        batch = [(), (2,), (2, 3)][random.integers(3)] if kind == "MatMul" else ()
        depth = size(40, 100)
        x_shape, w_shape, axis = (*batch, size(), depth), (depth, size()), 1
        if kind == "Gemm" and random.random() < 0.5:
            w_shape, axis, attributes = w_shape[::-1], 0, {"transB": 1}
    x, x_more = quantized(random, x_shape, left, None)
    w, w_more = weights_of(random, w_shape, axis if each else None)
    known = {f"{side}_{n}": a for side, more in (("x", x_more), ("w", w_more)) for n, a in more.items()}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], axis=axis),
        helper.make_node(kind, ["xf", "wf"], ["y"], **attributes),
    ]
    return nodes, {"x": x}, {**known, "w": w}, (exact(x, x_more, None), exact(w, w_more, axis if each else None))


def product(node, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The node's result for these operands, in float64, by ONNX's own implementation."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    alone = helper.make_node(node.op_type, ["a", "b"], ["y"], **attributes)
    inputs = {"a": left, "b": right}
    return ReferenceEvaluator(model_of([alone], inputs, {"y": "float64"})).run(None, inputs)[0]


def decisions(mod: tvm.IRModule) -> list[str]:
    return [each.get("reason", each["action"]) for each in read_log(mod) if each["pass"] == "MultiplyBytes"]


def whatever_the_price(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(multiply_bytes, "_RESULT", 0.0)
    patch.setattr(multiply_bytes, "_WINOGRAD", 1.0)
    patch.setattr(multiply_bytes, "_COPIED", dict.fromkeys(multiply_bytes._COPIED, 0.0))


def rewritten(model, target=WITH) -> tvm.IRModule:
    with target:
        return MultiplyBytes()(from_onnx(model))


@pytest.mark.parametrize("seed", seeds(6, 36, 200))
def test_drawn_products(seed, monkeypatch):
    """Whatever the price says: every product that may be of bytes is."""
    whatever_the_price(monkeypatch)
    monkeypatch.setattr(multiply_bytes, "_FEW_ROWS", 0)
    nodes, inputs, constants, sides = draw(np.random.default_rng(seed))
    want, most = product(nodes[-1], *sides), product(nodes[-1], *map(np.abs, sides))
    model = model_of(nodes, inputs, {"y": ("float32", want.shape)}, constants, 21)
    for mod in (rewritten(model), rewritten(model, PAIRED), from_onnx(model)):
        (got,) = compile(mod, "cpu").run(*inputs.values())
        assert (np.abs(got - want) <= 4e-6 * most + 1e-6).all()


def test_a_window_that_may_see_nothing_but_padding():
    """The zero point is 241, which as the fourth byte of a quad leaves 31 bits."""
    random = np.random.default_rng(0)
    x, w = integers(random, "uint8", (1, 4, 1)), integers(random, "int8", (32, 4, 1))
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "one"], ["wf"]),
        helper.make_node("Conv", ["xf", "wf"], ["y"], pads=[2, 2]),
    ]
    constants = {"w": w, "one": np.float32(1), "zero": np.uint8(241)}
    with pytest.MonkeyPatch.context() as patch:
        whatever_the_price(patch)
        mod = rewritten(model_of(nodes, {"x": x}, {"y": ("float32", (1, 32, 5))}, constants))
        assert decisions(mod) == ["multiplied as bytes"]
    want = np.zeros((1, 32, 5), "float32")
    want[0, :, 2] = w[:, :, 0].astype("int32") @ (x[0, :, 0].astype("int32") - 241)
    np.testing.assert_array_equal(compile(mod, "cpu").run(x)[0], want)


@pytest.mark.parametrize("left", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 3, 127])
def test_sums_are_exact(left, zero):
    """With scales of 1, the largest bytes and a depth at which floats round, the results are the integers."""
    random, depth = np.random.default_rng(0), 4096
    x, w = integers(random, left, (8, depth)), integers(random, "int8", (depth, 32))
    x[0], w[:, 0] = np.iinfo(left).max, -128
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "one"], ["wf"]),
        helper.make_node("MatMul", ["xf", "wf"], ["y"]),
    ]
    constants = {"w": w, "one": np.float32(1), "zero": np.asarray(zero, left)}
    mod = rewritten(model_of(nodes, {"x": x}, {"y": ("float32", (8, 32))}, constants))
    assert decisions(mod) == ["multiplied as bytes"]
    want = (x.astype("int64") - zero) @ w.astype("int64")
    np.testing.assert_array_equal(compile(mod, "cpu").run(x)[0], want.astype("float32"))


def matmul(x_shape=(8, 64), w_shape=(64, 48), scale=(1,), zero=0, **more) -> object:
    """A product of two dequantized tensors."""
    random = np.random.default_rng(0)
    x, w = integers(random, "uint8", x_shape), integers(random, "int8", w_shape)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], **more),
        helper.make_node("MatMul", ["xf", "wf"], ["y"]),
    ]
    scale = np.ones(scale, "float32")
    constants = {"w": w, "x_scale": np.float32(0.1), "x_zero": np.uint8(9), "w_scale": scale}
    constants["w_zero"] = np.full(scale.shape, zero, "int8")
    return model_of(nodes, {"x": x}, {"y": ("float32", (*x_shape[:-1], w_shape[-1]))}, constants)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (matmul(), "multiplied as bytes"),
        (matmul(scale=(48,), axis=1), "multiplied as bytes"),
        (matmul(scale=(64,), axis=0), "its constant is no matrix with a scale for each column"),
        (matmul((2, 8, 64), (2, 64, 48)), "its constant is no matrix with a scale for each column"),
        (matmul((8, 66), (66, 48)), "its depth is no multiple of 4"),
        (matmul((1, 64)), "multiplied as bytes"),
        (matmul(w_shape=(64, 3)), "price: "),
    ],
)
def test_what_is_multiplied(model, reason):
    (said,) = decisions(rewritten(model))
    assert said.startswith(reason)


@pytest.mark.parametrize(("depth", "reason"), [(65792, "multiplied as bytes"), (65796, "its sums may leave 32 bits")])
def test_sums_fit_into_32_bits(depth, reason):
    """65793 products of the largest bytes are the most that do."""
    x, w = np.full((4, depth), 255, "uint8"), np.full((depth, 32), -128, "int8")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "one"], ["wf"]),
        helper.make_node("MatMul", ["xf", "wf"], ["y"]),
    ]
    mod = rewritten(model_of(nodes, {"x": x}, {"y": ("float32", (4, 32))}, {"w": w, "one": np.float32(1)}))
    assert decisions(mod) == [reason]
    np.testing.assert_allclose(compile(mod, "cpu").run(x)[0], depth * 255.0 * -128, rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "through", "zero"),
    [
        ("uint8", "int8", None),
        ("uint8", "bool", None),
        ("int8", "uint8", np.uint8(100)),
        ("uint8", "float64", np.float64(0.5)),
        ("uint8", "int32", np.int32(300)),
        ("int8", "int32", np.int32(-129)),
    ],
)
@pytest.mark.parametrize("operator", ["MatMul", "Conv"])
def test_casts_and_zero_points_that_leave_the_bytes(operator, dtype, through, zero):
    """A byte that is another number after a cast, and what no DequantizeLinear has as its zero point."""
    random = np.random.default_rng(0)
    shape, w_shape = ((8, 64), (64, 48)) if operator == "MatMul" else ((1, 8, 9), (32, 8, 3))
    x, w = integers(random, dtype, shape), integers(random, "int8", w_shape)
    attributes = {} if operator == "MatMul" else {"pads": [1, 2]}
    to = helper.np_dtype_to_tensor_dtype
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=to(np.dtype(through))),
        *([] if zero is None else [helper.make_node("Sub", ["wide", "zero"], ["centred"])]),
        helper.make_node("Cast", ["wide" if zero is None else "centred"], ["float"], to=to(np.dtype("float32"))),
        helper.make_node("Mul", ["float", "one"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "half"], ["wf"]),
        helper.make_node(operator, ["xf", "wf"], ["y"], **attributes),
    ]
    constants = {"w": w, "one": np.float32(2), "half": np.float32(0.5)} | ({} if zero is None else {"zero": zero})
    stands_for = x.astype(through) if zero is None else x.astype(through) - zero
    want = product(nodes[-1], stands_for.astype("float64") * 2, w * 0.5)
    model = model_of(nodes, {"x": x}, {"y": ("float32", want.shape)}, constants)
    with pytest.MonkeyPatch.context() as patch:
        whatever_the_price(patch)
        mod = rewritten(model)
    assert decisions(mod) == []
    np.testing.assert_allclose(compile(mod, "cpu").run(x)[0], want, rtol=1e-5, atol=0.1)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (matmul((64, 384), (384, 384)), "multiplied as bytes"),
        (matmul((64, 386), (386, 384)), "multiplied as bytes"),
        (matmul((64, 385), (385, 384)), "its depth is no multiple of 2"),
        (matmul((15, 384), (384, 384)), "it has fewer than 16 rows, and the processor no VNNI"),
        (matmul((16, 8), (8, 8)), "price: "),
    ],
)
@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
def test_what_is_multiplied_in_pairs(cpu, model, reason):
    with parse_target(f'{{"kind": "llvm", "mcpu": "{cpu}"}}'):
        (said,) = decisions(MultiplyBytes()(from_onnx(model)))
    assert said.startswith(reason)


@pytest.mark.parametrize(
    ("places", "filters", "channels", "reason"),
    [
        (28, 64, 64, "multiplied as bytes"),
        (28, 64, 63, "multiplied as bytes"),
        (28, 64, 1, "price: "),
        (14, 64, 64, "it has fewer than 16 rows, and the processor no VNNI"),
        (28, 2, 64, "price: "),
    ],
)
def test_convolutions_in_pairs(places, filters, channels, reason):
    random = np.random.default_rng(0)
    x, w = integers(random, "uint8", (1, channels, places + 2)), integers(random, "int8", (filters, channels, 3))
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "one"], ["wf"]),
        helper.make_node("Conv", ["xf", "wf"], ["y"]),
    ]
    result = {"y": ("float32", (1, filters, places))}
    model = model_of(nodes, {"x": x}, result, {"w": w, "one": np.float32(1)})
    mod = rewritten(model, PAIRED)
    assert decisions(mod)[0].startswith(reason)
    want = product(nodes[-1], x.astype("float64"), w.astype("float64"))
    np.testing.assert_allclose(compile(mod, "cpu").run(x)[0], want, rtol=1e-5, atol=1)


@pytest.mark.parametrize(("channels", "reason"), [(1, "price: "), (3, "multiplied as bytes"), (5, "multiplied")])
def test_channels_that_fill_no_quad(channels, reason):
    """A picture of three channels gets a fourth one, whose weights are zero, where its borders are written."""
    random = np.random.default_rng(channels)
    x, w = integers(random, "int8", (1, channels, 21, 17)), integers(random, "int8", (16, channels, 3, 3))
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "one"], ["wf"]),
        helper.make_node("Conv", ["xf", "wf"], ["y"], pads=[1] * 4, strides=[2, 1]),
    ]
    constants = {"w": w, "one": np.float32(1), "zero": np.int8(-7)}
    mod = rewritten(model_of(nodes, {"x": x}, {"y": ("float32", (1, 16, 11, 17))}, constants))
    assert decisions(mod)[0].startswith(reason)
    want = product(nodes[-1], x.astype("float64") + 7, w.astype("float64"))
    np.testing.assert_array_equal(compile(mod, "cpu").run(x)[0], want)


@pytest.mark.parametrize(
    ("places", "stride", "reason"), [(28, 1, "price: "), (28, 2, "multiplied as bytes"), (7, 1, "multiplied as bytes")]
)
def test_pairs_beside_winograd_transforms(places, stride, reason):
    """Floats have fewer products in a 3 x 3 convolution of stride 1 with enough pixels."""
    random, side = np.random.default_rng(0), places * stride
    x, w = integers(random, "uint8", (1, 64, side, side)), integers(random, "int8", (64, 64, 3, 3))
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "one"], ["wf"]),
        helper.make_node("Conv", ["xf", "wf"], ["y"], pads=[1] * 4, strides=[stride] * 2),
    ]
    result = {"y": ("float32", (1, 64, places, places))}
    model = model_of(nodes, {"x": x}, result, {"w": w, "one": np.float32(1)})
    assert decisions(rewritten(model, PAIRED))[0].startswith(reason)
    assert decisions(rewritten(model)) == ["multiplied as bytes"]


@pytest.mark.parametrize("target", [WITH, PAIRED])
@pytest.mark.parametrize(
    ("inside", "size", "reason"),
    [
        (1, 3, "multiplied as bytes"),
        (2, 3, "it has groups of several channels"),
        (1, 22, "multiplied as bytes"),
        (1, 23, "floats may not hold its sums exactly"),
    ],
)
def test_depthwise_convolutions(target, inside, size, reason):
    """514 products of the largest bytes are the most whose sums are exact in floats."""
    random, groups = np.random.default_rng(0), 5
    x = integers(random, "uint8", (1, groups * inside, 24, 24))
    w = np.full((groups * inside, inside, size, size), -128, "int8")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "one"], ["wf"]),
        helper.make_node("Conv", ["xf", "wf"], ["y"], group=groups, pads=[1] * 4),
    ]
    side = 24 + 2 - size + 1
    constants = {"w": w, "one": np.float32(1), "zero": np.uint8(3)}
    result = {"y": ("float32", (1, groups * inside, side, side))}
    mod = rewritten(model_of(nodes, {"x": x}, result, constants), target)
    assert decisions(mod) == [reason]
    want = product(nodes[-1], x.astype("float64") - 3, w.astype("float64"))
    got = compile(mod, "cpu").run(x)[0]
    assert np.array_equal(got, want) if reason.startswith("mult") else np.allclose(got, want, rtol=1e-5)


def test_what_is_not_looked_at():
    """Constants that need nine bits, and processors with neither VNNI nor AVX2."""
    assert decisions(rewritten(matmul(zero=5))) == []
    with parse_target('{"kind": "llvm", "mcpu": "nehalem"}'):
        assert decisions(MultiplyBytes()(from_onnx(matmul((64, 384), (384, 384))))) == []


def test_gpus_ask_their_prices():
    """Bytes keep their sign there, any depth is taken, and the price decides; depthwise products stay in floats."""
    model = matmul((64, 33), (33, 48))
    slow, fast = (MultiplyBytes(lambda *sizes, ratio=ratio: ratio)(from_onnx(model)) for ratio in (1.25, 0.5))
    assert decisions(slow) == ["price: 1.25 times the cycles of floats"]
    assert decisions(fast) == ["multiplied as bytes"]
    over = bytes_over_floats(parse_target("cuda"), "float16")
    assert over(4096, 768, 768, False) < 1 and over(4096, 4096, 4096, True) < over(4096, 768, 768, False)
    assert bytes_over_floats(parse_target("opencl"), "float32") is None
    phone = bytes_over_floats(parse_target("adreno-740"), "float16")
    assert phone(256, 512, 512, False) < 1 <= phone(256, 512, 576, True)

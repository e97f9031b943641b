# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from against_onnxruntime import RUNTIME, check, check_contrib, integers, weights

F = "float32"
BATCH, ROWS, HEADS, SIZE = 2, 5, 4, 8
WIDTH = HEADS * SIZE


def _floats(random, *shape):
    return random.standard_normal(shape).astype("float32")


def _attention(random, kind, dtype, columns):
    """Inputs, constants, names and attributes of a QAttention with one kind of mask or past."""
    shape = (3 * WIDTH,) if columns else ()
    drawn = (
        weights(random, dtype, (24, 3 * WIDTH)) if dtype == "int8" else integers(random, dtype, (24, 3 * WIDTH)) // 2
    )
    zero = np.zeros(shape, dtype) if dtype == "int8" else np.full(shape, integers(random, dtype))
    given = {
        "w": drawn.astype(dtype),
        "b": _floats(random, 3 * WIDTH),
        "sx": np.float32(0.01),
        "zx": integers(random, "uint8"),
    }
    given |= {"sw": np.asarray(random.random(shape) * 0.02, F), "zw": zero}
    arrays = {"x": integers(random, "uint8", (BATCH, ROWS, 24))}
    if kind in ("past", "past and keys"):
        arrays["past"] = _floats(random, 2, BATCH, HEADS, 3, SIZE)
    if kind == "ends":
        arrays["mask"] = np.array([3, 5], "int32")
    elif kind in ("keys", "past and keys"):
        arrays["mask"] = random.integers(0, 2, (BATCH, ROWS + 3 * ("past" in arrays))).astype("int32")
    names = [
        "x",
        "w",
        "b",
        "sx",
        "sw",
        "mask" if "mask" in arrays else "_",
        "zx",
        "zw",
        "past" if "past" in arrays else "_",
    ]
    attributes = {"num_heads": HEADS, "unidirectional": int(kind in ("past", "ends"))}
    attributes |= {"mask_filter_value": -100.0} if kind == "keys" else {}
    return arrays, given, " ".join(names), attributes


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["none", "ends", "keys", "past", "past and keys"])
@pytest.mark.parametrize(("dtype", "columns"), [("int8", True), ("uint8", False)])
def test_attention_of_bytes(kind, dtype, columns):
    arrays, given, names, attributes = _attention(np.random.default_rng(0), kind, dtype, columns)
    results = {"y": F, **({"present": F} if "past" in arrays else {})}
    check_contrib("QAttention", arrays, results, given, names, tolerance=5e-6, **attributes)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embeddings_of_bytes(dtype, segments, mask):
    random = np.random.default_rng(0)
    limits = {"ids": 20, **({"kind": 2} if segments else {}), **({"mask": 2} if mask else {})}
    arrays = {name: random.integers(0, limit, (BATCH, ROWS)).astype("int32") for name, limit in limits.items()}
    rows = {"words": (20,), "places": (10,), "kinds": (2,), "gamma": (), "beta": ()}
    given = {name: integers(random, dtype, (*rows[name], 16)) for name in rows if segments or name != "kinds"}
    for name in [*given]:
        given |= {f"{name}_s": np.float32(random.random() * 0.05 + 0.01), f"{name}_z": integers(random, dtype)}
    names = ["ids", "kind", "words", "places", "kinds", "gamma", "beta", "mask"]
    names += [f"{name}_s" for name in rows] + [f"{name}_z" for name in rows]
    names = " ".join(name if name in arrays or name in given else "_" for name in names)
    results = {"y": F, "count": "int32"}
    check_contrib("QEmbedLayerNormalization", arrays, results, given, names, epsilon=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_and_products_of_bytes(dtype):
    """By their written definitions: ONNX Runtime has no kernels for them on a CPU."""
    random, info = np.random.default_rng(0), np.iinfo(dtype)
    x, other, zero = integers(random, dtype, (3, 4, 5)), integers(random, dtype, (4, 1)), integers(random, dtype)
    product = (x.astype("int32") - zero) * other.astype("int32")
    check_contrib("MulInteger", {"x": x, "o": other}, {"y": "int32"}, {"z": zero}, "x z o", wanted=[product])
    to = "int32" if dtype == "int8" else "uint32"
    check_contrib(
        "ReduceSumInteger", {"x": x}, {"y": to}, wanted=[x.astype(to).sum((0, 1), dtype=to)], axes=[0, 1], keepdims=0
    )
    given = {"sx": np.float32(0.0213), "zx": zero, "sy": np.float32(0.0131), "zy": integers(random, dtype)}
    mean = ((x.astype(F) - np.float32(zero)) * given["sx"]).mean((0, 2), keepdims=True, dtype=F)
    wanted = np.clip(np.rint(mean / given["sy"]) + given["zy"], info.min, info.max).astype(dtype)
    check_contrib("QLinearReduceMean", {"x": x}, {"y": dtype}, given, wanted=[wanted], axes=[0, 2], keepdims=1)


@pytest.mark.parametrize(("axis", "opset"), [(1, 12), (1, 13), (0, 11), (-1, 12)])
def test_softmax_of_bytes_before_axes_counted_alone(axis, opset):
    random = np.random.default_rng(0)
    x = integers(random, "uint8", (3, 4, 5))
    given = {"sx": np.float32(0.02), "zx": integers(random, "uint8"), "sy": np.float32(1 / 256), "zy": np.uint8(0)}
    node = helper.make_node("QLinearSoftmax", ["x", *given], ["y"], domain=RUNTIME, axis=axis, opset=opset)
    check([node], {"x": x}, {"y": "uint8"}, given)

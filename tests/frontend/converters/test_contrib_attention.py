# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check, model_of, reference

BATCH, ROWS, HEADS, SIZE = 2, 5, 4, 8
WIDTH = HEADS * SIZE
CLOSE = 5e-6


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def _ones(*shape):
    return np.random.default_rng(3).integers(0, 2, shape).astype("int32")


def _check(op, names, arrays, constants=(), outputs="y", **attributes):
    """An input called ``_`` is left out."""
    names = [name.strip("_") for name in names.split()]
    node = helper.make_node(op, names, outputs.split(), domain=RUNTIME, **attributes)
    known = {name: arrays[name] for name in constants}
    given = {name: arrays[name] for name in names if name and name not in known}
    check([node], given, dict.fromkeys(outputs.split(), "float32"), known, tolerance=CLOSE)


MASKS = {
    "ends": np.array([3, 5], "int32"),
    "ends and begins": np.array([3, 5, 1, 0], "int32"),
    "keys": np.array([[1, 0, 1, 0, 0], [1, 1, 1, 1, 1]], "int32"),
    "no key": np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]], "int32"),
    "rows and keys": _ones(BATCH, ROWS, ROWS),
}
PROJECTIONS = {"x": _floats(BATCH, ROWS, 24), "w": _floats(24, 3 * WIDTH) / 3, "b": _floats(3 * WIDTH)}


@pytest.mark.each_value
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_masks(mask, ahead):
    arrays = {**PROJECTIONS, "mask": MASKS[mask]}
    _check("Attention", "x w b mask", arrays, "wb", num_heads=HEADS, unidirectional=ahead)


@pytest.mark.parametrize("ahead", [0, 1])
def test_attention_with_a_past(ahead):
    arrays = {**PROJECTIONS, "past": _floats(2, BATCH, HEADS, 3, SIZE, seed=1), "mask": _ones(BATCH, ROWS + 3)}
    options = {"num_heads": HEADS, "unidirectional": ahead}
    _check("Attention", "x w b _ past", arrays, "wb", "y present", **options)
    _check("Attention", "x w b mask past", arrays, "wb", "y present", **options)


def test_attention_with_a_bias_and_other_sizes():
    arrays = {**PROJECTIONS, "bias": _floats(BATCH, 1, ROWS, ROWS, seed=2)}
    _check("Attention", "x w b _ _ bias", arrays, "wb", num_heads=HEADS, mask_filter_value=-50.0, scale=0.3)
    arrays |= {"w": PROJECTIONS["w"][:, :64], "b": PROJECTIONS["b"][:64]}
    _check("Attention", "x w b", arrays, "wb", num_heads=HEADS, qkv_hidden_sizes=[16, 16, 32])


KEYS = 7
APART = {
    "q": _floats(BATCH, ROWS, WIDTH),
    "k": _floats(BATCH, KEYS, WIDTH, seed=1),
    "v": _floats(BATCH, KEYS, 16, seed=2),
}
MORE = {
    "ends": np.array([3, 7], "int32"),
    "keys": _ones(BATCH, KEYS),
    "scores": _ones(BATCH, ROWS, KEYS),
    "bias": _floats(1, HEADS, ROWS, KEYS, seed=3),
    "b": _floats(2 * WIDTH + 16, seed=4),
}


@pytest.mark.parametrize(
    "names",
    ["q k v", "q k v b", "q k v _ ends", "q k v _ keys", "q k v _ scores", "q k v _ _ bias", "q k v b keys bias"],
)
def test_multi_head_attention(names):
    _check("MultiHeadAttention", names, {**APART, **MORE}, num_heads=HEADS, scale=0.2)


def test_multi_head_attention_of_heads():
    """Of which nothing is added to: a bias is the queries' then."""
    arrays = {"q": APART["q"], "k": _floats(BATCH, HEADS, KEYS, SIZE), "v": _floats(BATCH, HEADS, KEYS, SIZE, seed=1)}
    _check("MultiHeadAttention", "q k v", arrays, num_heads=HEADS)
    _check("MultiHeadAttention", "q k v b", arrays | {"b": _floats(3 * WIDTH)}, num_heads=HEADS)


@pytest.mark.parametrize("ahead", [0, 1])
def test_multi_head_attention_with_a_past(ahead):
    arrays = {name: _floats(BATCH, ROWS, WIDTH, seed=at) for at, name in enumerate("qkv")}
    arrays |= {name: _floats(BATCH, HEADS, 3, SIZE, seed=at) for at, name in enumerate(("pk", "pv"))}
    arrays |= {"b": _floats(3 * WIDTH), "keys": _ones(BATCH, ROWS + 3)}
    options = {"num_heads": HEADS, "unidirectional": ahead, "outputs": "y key value"}
    _check("MultiHeadAttention", "q k v _ _ _ pk pv", arrays, **options)
    _check("MultiHeadAttention", "q k v b keys _ pk pv", arrays, **options)


@pytest.mark.parametrize(("names", "parts"), [("q", "qkv"), ("q k", "kv")])
def test_packed_tensors_are_the_same_as_those_apart(names, parts):
    """ONNX Runtime has no kernel for them on the CPU."""
    arrays = {name: _floats(BATCH, ROWS, HEADS, SIZE, seed=at) for at, name in enumerate("qkv")}
    apart = {name: array.reshape(BATCH, ROWS, WIDTH) for name, array in arrays.items()}
    packed = np.stack([arrays[name] for name in parts], 3)
    together = {"q": packed} if parts == "qkv" else {"q": apart["q"], "k": packed}
    results = []
    for given in (apart, together):
        node = helper.make_node("MultiHeadAttention", list(given), ["y"], domain=RUNTIME, num_heads=HEADS)
        model = model_of([node], given, {"y": ("float32", (BATCH, ROWS, WIDTH))})
        results += sm.compile(sm.from_onnx(model)).run(*given.values())
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


GROUPS, LARGE = 2, 16
TABLES = {"cos": _floats(30, LARGE // 2), "sin": _floats(30, LARGE // 2, seed=1)}
KINDS = {"plain": {}, "window": {"local_window_size": 3}, "cap": {"softcap": 5.0}, "scale": {"scale": 0.2}}


def _grouped(batch, rows, before, total, lengths):
    shapes = {"q": (batch, rows, HEADS * LARGE), "k": (batch, rows, GROUPS * LARGE), "v": (batch, rows, GROUPS * LARGE)}
    shapes |= {} if not before else dict.fromkeys(("pk", "pv"), (batch, GROUPS, before, LARGE))
    arrays = {name: _floats(*shape, seed=at) for at, (name, shape) in enumerate(shapes.items())}
    return arrays | {"lengths": np.array(lengths, "int32"), "total": np.array(total, "int32"), **TABLES}


# Rows, size of the past, length of the longest batch, lengths less one.
CACHES = {
    "prompt": (5, 0, 5, [4, 4]),
    "next": (1, 6, 7, [6, 6]),
    "shorter": (1, 6, 7, [6, 4]),
    "room": (1, 10, 7, [6, 3]),
    "chunk": (3, 6, 9, [8]),
}


def _check_grouped(cache, kind, turn, known):
    rows, before, total, lengths = CACHES[cache]
    arrays = _grouped(len(lengths), rows, before, total, lengths)
    names = ("q k v pk pv" if before else "q k v _ _") + " lengths total" + (" cos sin" if turn is not None else "")
    options = {"num_heads": HEADS, "kv_num_heads": GROUPS, **KINDS[kind]}
    options |= {} if turn is None else {"do_rotary": 1, "rotary_interleaved": turn}
    constants = ["total", *(["cos", "sin"] if turn is not None else []), *(["lengths"] if known else [])]
    _check("GroupQueryAttention", names, arrays, constants, "y key value", **options)


# The device tier takes the others with each kind, below.
@pytest.mark.parametrize("cache", ["prompt", "next", "chunk"])
def test_group_query_attention_with_caches(cache):
    _check_grouped(cache, "plain", 0, known=False)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_group_query_attention(kind):
    _check_grouped("room", kind, None, known=True)


@pytest.mark.pairwise
@pytest.mark.device
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("turn", [None, 0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", CACHES)
def test_all_kinds_of_group_query_attention(cache, kind, turn, known):
    _check_grouped(cache, kind, turn, known)


def test_group_query_attention_of_one_tensor_and_with_a_bias():
    arrays = _grouped(2, 5, 0, 5, [4, 4])
    arrays["q"] = _floats(2, 5, (HEADS + 2 * GROUPS) * LARGE)
    options = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    _check("GroupQueryAttention", "q _ _ _ _ lengths total", arrays, ["total"], "y key value", **options)
    arrays = _grouped(1, 3, 6, 9, [8]) | {"bias": _floats(1, HEADS, 3, 9), "at": np.array([[6, 7, 8]])}
    names = "q k v pk pv lengths total cos sin at bias"
    _check("GroupQueryAttention", names, arrays, ["total", *TABLES], "y key value", do_rotary=1, **options)


SINKS = {"sink": {}, "smooth": {"smooth_softmax": 1}, "sink, cap and window": {"softcap": 3.0, "local_window_size": 2}}


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [*SINKS, "not causal"])
@pytest.mark.parametrize("cache", CACHES)
def test_sinks_and_rows_that_look_ahead(cache, kind):
    rows, before, total, lengths = CACHES[cache]
    arrays = _grouped(len(lengths), rows, before, total, lengths) | {"sinks": _floats(HEADS)}
    names = (
        ("q k v pk pv" if before else "q k v _ _") + " lengths total _ _ _ _ " + ("sinks" if "sink" in kind else "_")
    )
    options = {"num_heads": HEADS, "kv_num_heads": GROUPS, **SINKS.get(kind, {"causal": 0})}
    _check("GroupQueryAttention", names, arrays, ["total", "lengths"], "y key value", **options)


@pytest.mark.parametrize("epsilons", [{}, {"qk_norm_epsilon": 0.1}, {"q_norm_epsilon": 0.2, "k_norm_epsilon": 0.3}])
def test_normalized_queries_and_keys_are_those_of_nodes_before(epsilons):
    """ONNX Runtime has no kernel for it on a CPU: the same network in nodes is what it is compared with."""
    arrays = _grouped(2, 5, 0, 5, [4, 4]) | {"qn": _floats(LARGE, seed=8), "kn": _floats(LARGE, seed=9)}
    both = epsilons.get("qk_norm_epsilon", 1e-6)

    def normalized(name, heads, key):
        x = arrays[name].reshape(2, 5, heads, LARGE).astype("float64")
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilons.get(f"{key}_norm_epsilon", both)) * arrays[f"{key}n"]
        return x.reshape(arrays[name].shape).astype("float32")

    plain = arrays | {"q": normalized("q", HEADS, "q"), "k": normalized("k", GROUPS, "k")}
    options, results = {"num_heads": HEADS, "kv_num_heads": GROUPS}, {"y": "float32"}
    names = ["q", "k", "v", "", "", "lengths", "total"]
    inputs = {name: plain[name] for name in (*"qkv", "lengths")}
    node = helper.make_node("GroupQueryAttention", names, ["y"], domain=RUNTIME, **options)
    wanted = reference(model_of([node], inputs, results, {"total": arrays["total"]}), inputs)
    node = helper.make_node(
        "GroupQueryAttention", [*names, *[""] * 7, "qn", "kn"], ["y"], domain=RUNTIME, **options, **epsilons
    )
    constants = {name: arrays[name] for name in ("total", "qn", "kn")}
    check([node], inputs | {name: arrays[name] for name in "qk"}, results, constants, tolerance=CLOSE, wanted=wanted)


@pytest.mark.parametrize(
    ("attributes", "constants", "reason"),
    [
        ({"sliding_window_cache": 1}, ["total"], "sliding_window_cache is 1"),
        ({"k_quant_type": "PER_TENSOR"}, ["total"], "k_quant_type is PER_TENSOR"),
        ({"of_tomorrow": 1}, ["total"], "of_tomorrow is one that this version does not know"),
        ({}, [], "total_sequence_length is known at run time only"),
    ],
)
def test_other_kinds_of_group_query_attention_are_refused(attributes, constants, reason):
    arrays = _grouped(2, 5, 0, 5, [4, 4])
    names = ["q", "k", "v", "", "", "lengths", "total"]
    options = {"num_heads": HEADS, "kv_num_heads": GROUPS, "name": "grouped", **attributes}
    node = helper.make_node("GroupQueryAttention", names, ["y"], domain=RUNTIME, **options)
    inputs = {name: arrays[name] for name in names if name and name not in constants}
    model = model_of(
        [node], inputs, {"y": ("float32", (2, 5, HEADS * LARGE))}, {each: arrays[each] for each in constants}
    )
    with pytest.raises(sm.UserError, match=rf"grouped.*{reason}"):
        sm.from_onnx(model)


POSITIONS = {"each": np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]), "first": np.array([3])}


@pytest.mark.pairwise
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("shape", [(BATCH, ROWS, WIDTH), (BATCH, HEADS, ROWS, SIZE)], ids=str)
def test_rotary_embedding(shape, positions, interleaved):
    arrays = {
        "x": _floats(*shape),
        "at": POSITIONS[positions],
        "c": _floats(20, SIZE // 2),
        "s": _floats(20, SIZE // 2),
    }
    _check("RotaryEmbedding", "x at c s", arrays, "cs", interleaved=interleaved)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding_of_a_part(interleaved):
    arrays = {"x": _floats(BATCH, ROWS, WIDTH), "at": POSITIONS["each"], "c": _floats(20, 2), "s": _floats(20, 2)}
    options = {"interleaved": interleaved, "num_heads": HEADS, "rotary_embedding_dim": 4}
    _check("RotaryEmbedding", "x at c s", arrays, "cs", **options)


def test_attention_becomes_one_kernel():
    """What `fuse_attention` looks for: a product, a softmax, a product."""
    arrays = {name: _floats(1, 64, 4 * 32, seed=at) for at, name in enumerate("qkv")}
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain=RUNTIME, num_heads=4)
    compiled = sm.compile(sm.from_onnx(model_of([node], arrays, {"y": ("float32", (1, 64, 128))})))
    assert any("matmul" in name and "softmax" in name for name in compiled.rules)

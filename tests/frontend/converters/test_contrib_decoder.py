# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check_contrib, model_of, reference

F = "float32"
BATCH, HEADS, SIZE, MOST = 2, 4, 8, 7
WIDTH = HEADS * SIZE
OPTIONS = {"num_heads": HEADS, "past_present_share_buffer": 1}
RESULTS = {"y": F, "present_k": F, "present_v": F}


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def _given(at):
    arrays = {name: _floats(BATCH, 1, WIDTH, seed=seed) for seed, name in enumerate("qkv")}
    arrays |= {name: _floats(BATCH, HEADS, MOST, SIZE, seed=seed) for seed, name in enumerate(("pk", "pv"), 3)}
    return arrays, {"at": np.array([at], "int32")}


KINDS = {
    "plain": ("q k v _ _ pk pv at", {}),
    "mask": ("q k v mask _ pk pv at", {"mask_filter_value": -50.0}),
    "scores": ("q k v _ scores pk pv at", {"scale": 0.3}),
    "bias": ("q k v _ _ pk pv at _ _ bias", {}),
    "all": ("q k v mask scores pk pv at _ _ bias", {}),
}


@pytest.mark.each_value
@pytest.mark.parametrize("at", [0, 3, MOST - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_over_a_cache(kind, at):
    names, options = KINDS[kind]
    arrays, given = _given(at)
    if "mask" in names:
        arrays["mask"] = np.random.default_rng(5).integers(0, 2, (BATCH, at + 1)).astype("int32")
    if "scores" in names:
        arrays["scores"] = _floats(1, HEADS, 1, at + 1, seed=6)
    given |= {"bias": _floats(3 * WIDTH, seed=7)} if "bias" in names else {}
    check_contrib("DecoderMaskedMultiHeadAttention", arrays, RESULTS, given, names, 5e-6, **OPTIONS, **options)


@pytest.mark.parametrize("at", [0, 3, MOST - 1])
def test_how_full_the_cache_is_may_be_known_at_run_time_only(at):
    arrays, given = _given(at)
    names = KINDS["plain"][0]
    check_contrib("DecoderMaskedMultiHeadAttention", arrays | given, RESULTS, {}, names, 5e-6, **OPTIONS)


def test_one_tensor_of_queries_keys_and_values_is_the_same_as_three():
    """ONNX Runtime has no kernel for it on a CPU."""
    arrays, given = _given(3)
    names = KINDS["plain"][0].split()
    node = helper.make_node(
        "DecoderMaskedMultiHeadAttention", ["" if n == "_" else n for n in names], [*RESULTS], domain=RUNTIME, **OPTIONS
    )
    wanted = reference(model_of([node], arrays, RESULTS, given), arrays)
    together = {"q": np.concatenate([arrays[name] for name in "qkv"], 2), "pk": arrays["pk"], "pv": arrays["pv"]}
    check_contrib(
        "DecoderMaskedMultiHeadAttention", together, RESULTS, given, "q _ _ _ _ pk pv at", 5e-6, wanted, **OPTIONS
    )


@pytest.mark.parametrize("names", ["q k v", "q k v mask", "q k v mask _ _ _ _ _ _ bias"])
def test_a_token_over_another_sequence(names):
    arrays = {
        "q": _floats(BATCH, 1, WIDTH),
        "k": _floats(BATCH, HEADS, 9, SIZE, seed=1),
        "v": _floats(BATCH, HEADS, 9, SIZE, seed=2),
    }
    if "mask" in names:
        arrays["mask"] = np.random.default_rng(5).integers(0, 2, (BATCH, 9)).astype("int32")
    given = {"bias": _floats(3 * WIDTH, seed=7)} if "bias" in names else {}
    check_contrib("DecoderMaskedMultiHeadAttention", arrays, {"y": F}, given, names, 5e-6, num_heads=HEADS)


def test_the_projections_as_part_of_it_are_those_of_attention():
    arrays = {"x": _floats(BATCH, 1, 24), "past": _floats(2, BATCH, HEADS, 3, SIZE, seed=1)}
    given = {"w": _floats(24, 3 * WIDTH, seed=2) / 3, "b": _floats(3 * WIDTH, seed=3)}
    node = helper.make_node("Attention", ["x", "w", "b", "", "past"], ["y", "p"], domain=RUNTIME, num_heads=HEADS)
    wanted = reference(model_of([node], arrays, {"y": F, "p": F}, given), arrays)
    given["at"] = np.array([3], "int32")
    names = "x w b _ past _ at"
    check_contrib("DecoderMaskedSelfAttention", arrays, {"y": F, "p": F}, given, names, 5e-6, wanted, num_heads=HEADS)


@pytest.mark.parametrize(
    ("names", "options", "reason"),
    [
        ("q k v _ _ pk pv at beams", {}, "several beams"),
        ("q k v _ _ pk pv at _ pk", {}, "cache_indirection"),
        ("q k v _ _ pk pv at", {"past_present_share_buffer": 0}, "write MultiHeadAttention"),
        ("q k v _ _ pk pv at", {"output_qk": 1}, "output_qk is 1"),
    ],
)
def test_what_is_refused(names, options, reason):
    arrays, given = _given(3)
    given["beams"] = np.array([4], "int32")
    names = ["" if name == "_" else name for name in names.split()]
    node = helper.make_node(
        "DecoderMaskedMultiHeadAttention", names, ["y"], "step", domain=RUNTIME, **OPTIONS | options
    )
    with pytest.raises(sm.UserError, match=rf"DecoderMasked.*step.*{reason}"):
        sm.from_onnx(model_of([node], arrays, {"y": (F, (BATCH, 1, WIDTH))}, given))

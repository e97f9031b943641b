# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from against_onnxruntime import check_contrib

F = "float32"


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


@pytest.mark.each_value
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sections", [[2, 1, 1], [4, 0, 0], [1, 1, 2]])
@pytest.mark.parametrize("shape", [(2, 5, 32), (2, 4, 5, 8)], ids=str)
def test_places_in_time_height_and_width(shape, sections, layout, interleaved):
    if layout:
        sections = [2, 1, 1] if sections[0] < 4 else sections  # the streams take turns
    positions = np.random.default_rng(0).integers(0, 20, (3, 2, 5))
    given = {"c": _floats(20, 4), "s": _floats(20, 4, seed=1)}
    options = {"mrope_section": sections, "mrope_layout": layout, "interleaved": interleaved}
    options |= {"num_heads": 4} if len(shape) == 3 else {}
    check_contrib("MRotaryEmbedding", {"x": _floats(*shape), "p": positions}, {"y": F}, given, **options)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_places_of_a_part_of_each_head(interleaved):
    positions = np.random.default_rng(0).integers(0, 20, (3, 2, 5))
    given = {"c": _floats(20, 6), "s": _floats(20, 6, seed=1)}
    options = {"mrope_section": [2, 2, 2], "interleaved": interleaved, "num_heads": 4, "rotary_embedding_dim": 12}
    check_contrib("MRotaryEmbedding", {"x": _floats(2, 5, 64), "p": positions}, {"y": F}, given, **options)


def test_queries_and_keys_by_angles():
    """By its written definition: ONNX Runtime has no kernel for it on a CPU."""
    angles, half = _floats(2, 5, 8), "float16"
    arrays = {name: _floats(2, 3, 5, 8, seed=seed).astype(half) for seed, name in enumerate(("q", "qr", "k", "kr"), 1)}
    sine, cosine = (function(angles).astype(half)[:, None] for function in (np.sin, np.cos))
    wanted = [arrays[name] * cosine + arrays[f"{name}r"] * sine for name in "qk"]
    check_contrib(
        "GemmaRotaryEmbedding", {"e": angles, **arrays}, {"a": half, "b": half}, tolerance=2e-3, wanted=wanted
    )

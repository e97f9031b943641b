# SPDX-License-Identifier: Apache-2.0
"""By their written definition: ONNX Runtime has no kernels for these on a CPU."""

import math

import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check_contrib, model_of

F = "float32"
HEADS = 4


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def _bucket(ahead: int, buckets: int, both: bool, farthest: int) -> int:
    first = 0
    if both:
        buckets //= 2
        first = buckets if ahead > 0 else 0
    apart, exact = abs(ahead), buckets // 2
    if apart < exact:
        return first + apart
    grown = math.log(apart / exact) / math.log(farthest / exact) * (buckets - exact)
    return first + min(exact + int(grown + 1e-6), buckets - 1)


@pytest.mark.each_value
@pytest.mark.parametrize("both", [0, 1])
@pytest.mark.parametrize(("rows", "keys"), [(5, 5), (40, 40), (1, 9)])
def test_biases_by_distance(both, rows, keys):
    table = _floats(32, HEADS)
    of_heads = table.reshape(HEADS, 32)
    wanted = [
        [[of_heads[head, _bucket(key - row, 32, bool(both), 128)] for key in range(keys)] for row in range(rows)]
        for head in range(HEADS)
    ]
    given = {"q": np.array([rows]), "k": np.array([keys])}
    options = {"max_distance": 128, "is_bidirectional": both}
    check_contrib("RelativePositionBias", {"t": table}, {"y": F}, given, wanted=[np.array([wanted], F)], **options)


def test_biases_that_queries_scale():
    query, distances, bias = _floats(2, 5, HEADS * 8), _floats(1, HEADS, 5, 5, seed=1), _floats(HEADS * 8, seed=2)
    given = {"w": _floats(8, 8, seed=3), "b": _floats(8, seed=4), "e": _floats(1, HEADS, 1, 1, seed=5)}
    linear = (query + bias).reshape(2, 5, HEADS, 8).transpose(0, 2, 1, 3) @ given["w"] + given["b"]
    gates = 1 / (1 + np.exp(-linear.reshape(2, HEADS, 5, 2, 4).sum(-1)))
    wanted = (gates[..., :1] * (gates[..., 1:] * given["e"] - 1) + 2) * distances
    arrays, names = {"q": query, "d": distances}, "q qb d w b e"
    check_contrib(
        "GatedRelativePositionBias",
        arrays,
        {"y": F},
        {**given, "qb": bias},
        names,
        wanted=[wanted.astype(F)],
        num_heads=HEADS,
    )


def test_lengths_that_are_not_known_are_refused():
    node = helper.make_node("RelativePositionBias", ["t", "q", "q"], ["y"], "far", domain=RUNTIME, max_distance=8)
    model = model_of([node], {"t": _floats(8, 2), "q": np.array([3])}, {"y": (F, (1, 2, 3, 3))})
    with pytest.raises(sm.UserError, match=r"RelativePositionBias.*far.*known at run time only"):
        sm.from_onnx(model)

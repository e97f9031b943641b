# SPDX-License-Identifier: Apache-2.0
"""The mask of attention whose masked scores are no tensor: each stage adds the mask by itself."""

import pytest
from tvm import te, tirx

from smartmem_tvm.analysis.key_axis import key_axis, mask_of
from smartmem_tvm.ir.kernel import Opaque, parse

KEYS, HEADS, HEAD = 32, 3, 4


def attention(second):
    """Return the kernel; `second` is what the exponential adds to the scores in place of the mask."""
    q = te.placeholder((HEADS, HEAD), "float32", "q")
    seen = te.placeholder((KEYS,), "bool", "seen")
    values = te.placeholder((KEYS, HEAD), "float32", "values")
    j, k, n = (te.reduce_axis((0, KEYS), name) for name in "jkn")
    i = te.reduce_axis((0, HEAD), "i")
    scores = te.compute((HEADS, KEYS), lambda h, at: te.sum(q[h, i] * values[at, i], i), "scores")

    def masked(h, at):
        return scores[h, at] + tirx.Select(seen[at], tirx.const(0.0, "float32"), tirx.const(-1e9, "float32"))

    most = te.compute((HEADS,), lambda h: te.max(masked(h, j), j), "most")
    power = te.compute((HEADS, KEYS), lambda h, at: te.exp(second(masked, h, at) - most[h]), "power")
    total = te.compute((HEADS,), lambda h: te.sum(power[h, k], k), "total")
    out = te.compute((HEADS, HEAD), lambda h, d: te.sum(power[h, n] / total[h] * values[n, d], n), "out")
    kernel = parse(te.create_prim_func([q, seen, values, out]))
    return kernel, next(each for each in kernel.inputs if each.name == "values")


def test_a_mask_that_each_stage_adds():
    kernel, values = attention(lambda masked, h, at: masked(h, at))
    mask = mask_of(kernel, key_axis(kernel, values, 0))
    assert "seen" in str(mask.value) and mask.stage.name.startswith("most")


def test_another_expression_than_that_of_the_maximum_is_refused():
    kernel, values = attention(lambda masked, h, at: masked(h, KEYS - 1 - at))
    with pytest.raises(Opaque, match="keys are read through a map"):
        mask_of(kernel, key_axis(kernel, values, 0))
    kernel, values = attention(lambda masked, h, at: masked(h, at) * 2)
    with pytest.raises(Opaque, match="other numbers than products with the results of a softmax"):
        mask_of(kernel, key_axis(kernel, values, 0))

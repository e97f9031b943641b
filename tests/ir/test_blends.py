# SPDX-License-Identifier: Apache-2.0
"""Which selects choose between numbers, and which may keep something from being computed."""

import pytest
from tvm import te, tirx

from smartmem_tvm.ir.blends import branches, is_blend
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.ir.walk import collect

N = 8


def value(build, dtype="float32"):
    """What is stored for an element `i`; `build` makes it of tensors of numbers, integers and truth values, and `i`."""
    x, at, mask = (te.placeholder((N,), t, name=n) for n, t in (("x", dtype), ("at", "int64"), ("mask", "bool")))
    output = te.compute((N,), lambda i: build(x, at, mask, i))
    return parse(te.create_prim_func([x, at, mask, output])).last.body.value


BLENDS = {
    "a mask": lambda x, at, mask, i: tirx.Select(mask[i], x[i], tirx.const(0, x.dtype)),
    "a comparison": lambda x, at, mask, i: tirx.Select(x[i] > x[0], x[i] * 2, x[N - 1 - i]),
    "integers divided by a constant": lambda x, at, mask, i: tirx.Select(mask[i], at[i] // 3, at[i]),
}
OTHERS = {
    "a place": lambda x, at, mask, i: tirx.Select(i > 0, x[i - 1], tirx.const(0, x.dtype)),
    "a place and a mask": lambda x, at, mask, i: tirx.Select(tirx.all(mask[i], i > 0), x[i - 1], x[i]),
    "what is looked up": lambda x, at, mask, i: tirx.Select(at[i] >= 0, x[at[i]], x[i]),
    "a quotient": lambda x, at, mask, i: tirx.Select(at[i] != 0, tirx.truncdiv(at[0], at[i]), at[i]),
    "a branch": lambda x, at, mask, i: tirx.if_then_else(mask[i], x[i], x[0]),
    "a branch within": lambda x, at, mask, i: tirx.Select(mask[i], tirx.if_then_else(i > 0, x[i - 1], x[i]), x[i]),
}


@pytest.mark.parametrize("name", BLENDS)
def test_blends(name):
    stored = value(BLENDS[name])
    assert all(map(is_blend, collect(stored, tirx.Select)))
    assert not branches(stored)


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    stored = value(OTHERS[name])
    assert not any(map(is_blend, collect(stored, tirx.Select)))
    assert branches(stored)


def test_without_a_choice_there_is_no_branch():
    assert not branches(value(lambda x, at, mask, i: x[i] + 1))

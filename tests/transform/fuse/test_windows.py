# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache with a window begins at its first key: beside numpy, NaN where nothing may read."""

import numpy as np
import pytest

import smartmem_tvm as sm
from drawn_windows import ADDED, GIVEN, WindowAttention
from smartmem_tvm.analysis.key_span import lengths


def compiled(attention):
    options = sm.Options(caches=True, merge_chains=False)  # chains of small kernels take attention as small as this
    return sm.compile(sm.from_onnx(attention.model()), "llvm", options)


def read(attention, seen) -> tuple[int, int]:
    """Return the rows that may be read: as many as the least length that holds all rows that are seen."""
    rows = np.flatnonzero(seen.any((0, 1)))
    first, end = int(rows[0]), int(rows[-1]) + 1
    length = next(each for each in lengths(attention.capacity) if each >= end - first)
    begin = min(max(first // 16 * 16, end - length), attention.capacity - length)
    assert 0 <= begin <= first and end <= begin + length <= attention.capacity
    return begin, begin + length


def check(attention, model, random, firsts):
    """Compare a run with numpy; return whether some rows before the first key that is seen are not read."""
    inputs, seen = attention.arrays(random, firsts)
    want = attention.result(inputs, seen)
    begin, end = read(attention, seen)
    for name in ("past.key", "past.value"):
        rows = inputs[name].swapaxes(2, 3) if attention.transposed and name == "past.key" else inputs[name]
        rows[:, :, :begin], rows[:, :, end:] = np.nan, np.nan
    np.testing.assert_allclose(model.run_whole(inputs)[0], want, rtol=1e-4, atol=1e-5, err_msg=f"{attention} {firsts}")
    return begin > 0


def check_drawn(seed: int) -> None:
    random = np.random.default_rng([51, seed])
    attention = WindowAttention.drawn(random)
    model, last = compiled(attention), attention.capacity - attention.tokens
    assert "WithinLength" in {each["name"] for each in model.rules.values()}, attention
    for near in (0, last // 2, last):
        firsts = np.clip(near + random.integers(-9, 10, attention.batch), 0, last)
        check(attention, model, random, firsts)


@pytest.mark.device
@pytest.mark.parametrize("seed", range(8))
def test_windows_at_random(seed):
    check_drawn(seed)


FIXED = (
    WindowAttention(1, 3, 2, 1, 131, 8, 20),
    WindowAttention(2, 2, 1, 3, 130, 16, 17, ADDED, transposed=True),
    pytest.param(WindowAttention(1, 1, 2, 17, 256, 3, 30, GIVEN, chosen=True, low=-np.inf), marks=pytest.mark.device),
)


@pytest.mark.parametrize("attention", FIXED, ids=lambda a: a.mask)
def test_rows_before_the_first_key_are_not_read(attention):
    model, random, last = compiled(attention), np.random.default_rng(5), attention.capacity - attention.tokens
    assert not check(attention, model, random, [0] * attention.batch)
    assert check(attention, model, random, [last // 2, last // 2 + 3][: attention.batch])
    assert check(attention, model, random, [last] * attention.batch)

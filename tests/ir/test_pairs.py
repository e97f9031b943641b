# SPDX-License-Identifier: Apache-2.0
"""Pairs of integers: the same sums of products, how they are recognised, and which numbers have 16 bits."""

import numpy as np
import pytest
from tvm import relax, te, tirx

from helpers import run
from smartmem_tvm.ir.pairs import (
    dot,
    has_16_bits,
    narrowest,
    numbers_of_pair,
    pack_pairs,
    pair,
    pair_of_bytes,
    pair_of_unsigned_bytes,
    pairs_of,
)

RANDOM = np.random.default_rng(0)
ENDS = {"int8": (-128, 127), "int16": (-(1 << 15), (1 << 15) - 1)}


def numbers(dtype: str) -> np.ndarray:
    """Any numbers of a type, its smallest and largest next to each other in each way."""
    low, high = ENDS[dtype]
    return np.r_[low, low, high, high, low, high, high, low, 0, -1, RANDOM.integers(low, high + 1, 54)].astype(dtype)


def run_te(body, *arrays) -> list[np.ndarray]:
    """A tensor expression of these arrays."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{n}", relax.TensorType(each.shape, str(each.dtype))) for n, each in enumerate(arrays)]
    with builder.function("main", inputs):
        builder.emit_func_output(builder.emit_te(body, *inputs))
    return run(builder.get(), *arrays)


def test_a_dot_is_the_sum_of_two_products():
    """Of the smallest number of 16 bits, four times, it goes around: so does the processor's instruction."""
    a, b = numbers("int16"), np.roll(numbers("int16"), 3)
    (got,) = run_te(lambda x, y: te.compute((32,), lambda i: dot(x[i], y[i])), pack_pairs(a, 0), pack_pairs(b, 0))
    products = a.astype("int64") * b
    np.testing.assert_array_equal(got, (products[::2] + products[1::2]).astype("int32"))


def test_what_numpy_packs_is_a_pair():
    a = numbers("int16").astype("int32")
    made = te.compute
    (got,) = run_te(lambda x: made((32,), lambda i: pair(x[2 * i], x[2 * i + 1])), a)
    np.testing.assert_array_equal(got, pack_pairs(a, 0))
    across = a.reshape(8, 8)
    np.testing.assert_array_equal(pack_pairs(across, 0), np.stack([pack_pairs(each, 0) for each in across.T], 1))


def test_pairs_of_bytes_are_as_those_of_16_bits():
    a = numbers("int8")
    (got,) = run_te(lambda x: te.compute((32,), lambda i: pair_of_bytes(x[i])), pack_pairs(a, 0, "int16"))
    np.testing.assert_array_equal(got, pack_pairs(a, 0))


def test_pairs_of_unsigned_bytes():
    a = np.r_[0, 255, 255, 0, 128, 127, 255, 255, RANDOM.integers(0, 256, 56)].astype("uint8")
    words = np.ascontiguousarray(a).view("uint16")
    (got,) = run_te(lambda x: te.compute((32,), lambda i: pair_of_unsigned_bytes(x[i])), words)
    np.testing.assert_array_equal(got, pack_pairs(a.astype("int16"), 0))


def test_the_numbers_of_a_pair():
    x = tirx.decl_buffer([4], "int32")
    found = numbers_of_pair(pair(x[1], x[2]))
    assert [int(each.indices[0]) for each in found] == [1, 2]
    assert numbers_of_pair(x[1] | (x[2] << tirx.const(16, "int32"))) is None and numbers_of_pair(x[1]) is None


def test_what_is_recognised():
    x, y = (tirx.decl_buffer([4], "int32") for _ in range(2))
    both = tirx.decl_buffer([4], "int16")
    term = dot(x[0], y[1])
    assert [each.source for each in pairs_of(term)] == [x, y]
    assert narrowest(pair_of_bytes(both[2])).source.same_as(both) and narrowest(x[0]).source.same_as(x)
    assert pairs_of(x[0] * y[1]) is None and pairs_of(x[0] + y[1]) is None
    low = x[0] * y[1]
    assert pairs_of(low + (x[0] >> 16) * (y[1] >> 16)) is None
    assert pairs_of(dot(x[0], y[1]).a + dot(x[0], y[2]).b) is None


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (lambda b, w: b.astype("int32"), True),
        (lambda b, w: b.astype("int32") - b.astype("int32"), True),
        (lambda b, w: tirx.if_then_else(b > 3, b.astype("int32"), tirx.const(40_000, "int32")), False),
        (lambda b, w: tirx.Select(b > 3, b.astype("int32"), tirx.const(0, "int32")), True),
        (lambda b, w: w, False),
        (lambda b, w: b.astype("int32") + w, False),
        (lambda b, w: b.astype("int32") * b.astype("int32"), False),
    ],
)
def test_which_numbers_have_16_bits(value, fits):
    byte, whole = tirx.decl_buffer([4], "uint8"), tirx.decl_buffer([4], "int32")
    assert has_16_bits(value(byte[0], whole[0])) == fits
    assert has_16_bits(whole[0], lambda load: (-5, 1 << 15)) is False
    assert has_16_bits(whole[0], lambda load: (-5, (1 << 15) - 1)) is True

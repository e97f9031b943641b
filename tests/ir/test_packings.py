# SPDX-License-Identifier: Apache-2.0
"""Quads of bytes: the same sums of products, how they are recognised, and which operands fit."""

import numpy as np
from tvm import relax, te, tirx

from helpers import run
from smartmem_tvm.ir.packings import PAIRS, QUADS, dot_of_quads, pack_quads, packed_factors, quad
from smartmem_tvm.ir.pairs import dot, ends_of, pack_pairs

RANDOM = np.random.default_rng(0)
UNSIGNED = np.r_[255, 255, 255, 255, 0, 255, 0, 255, RANDOM.integers(0, 256, 56)].astype("uint8")
SIGNED = np.r_[-128, -128, -128, -128, 127, -128, 0, -1, RANDOM.integers(-128, 128, 56)].astype("int8")


def run_te(body, *arrays) -> np.ndarray:
    """A tensor expression of these arrays."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{n}", relax.TensorType(each.shape, str(each.dtype))) for n, each in enumerate(arrays)]
    with builder.function("main", inputs):
        builder.emit_func_output(builder.emit_te(body, *inputs))
    return run(builder.get(), *arrays)[0]


def test_a_dot_is_the_sum_of_four_products():
    both = pack_quads(UNSIGNED, 0), pack_quads(SIGNED, 0)
    got = run_te(lambda x, y: te.compute((16,), lambda i: dot_of_quads(x[i], y[i])), *both)
    np.testing.assert_array_equal(got, (UNSIGNED.astype("int32") * SIGNED).reshape(16, 4).sum(1))


def test_what_numpy_packs_is_a_quad():
    for array in (UNSIGNED, SIGNED):
        wide = array.astype("int32")
        got = run_te(lambda x: te.compute((16,), lambda i: quad([x[4 * i + n] for n in range(4)])), wide)
        np.testing.assert_array_equal(got, pack_quads(array, 0))
        across = np.stack([pack_quads(each, 0) for each in array.reshape(8, 8).T], 1)
        np.testing.assert_array_equal(pack_quads(array.reshape(8, 8), 0), across)


def test_what_is_recognised():
    x, y = (tirx.decl_buffer([4], "int32") for _ in range(2))
    packing, factors = packed_factors(dot_of_quads(x[0], y[1]))
    assert packing is QUADS and [each.source for each in factors] == [x, y]
    packing, factors = packed_factors(dot(x[0], y[1]))
    assert packing is PAIRS and [each.source for each in factors] == [x, y]
    mixed = dot_of_quads(x[0], y[1]).a + dot_of_quads(x[0], y[2]).b
    assert all(packed_factors(each) is None for each in (x[0] * y[1], x[0] + y[1], mixed))


def test_a_turned_packing_multiplies_the_same():
    x, y = (tirx.decl_buffer([4], "int32") for _ in range(2))
    turned = QUADS.turn()
    assert turned.ranges == QUADS.ranges[::-1] and turned.turn() == QUADS and PAIRS.turn() is PAIRS
    _, factors = packed_factors(turned.dot(y[1], x[0]))
    assert [each.source for each in factors] == [x, y]


def test_what_fits():
    x, y, z = (tirx.decl_buffer([4], dtype)[0] for dtype in ("uint8", "int8", "int16"))
    x, y, z = (each.astype("int32") for each in (x, y, z))
    assert QUADS.take(x, y, lambda _: None) and not QUADS.take(y, x, lambda _: None)
    assert QUADS.turn().take(y, x, lambda _: None)
    assert not QUADS.take(z, y, lambda _: None) and PAIRS.take(z, y, lambda _: None)
    short = y.astype("int16") + tirx.const(128, "int16")
    assert ends_of(short.astype("int32")) == (0, 255)
    assert ends_of((z.astype("int16") + tirx.const(1, "int16")).astype("int32")) == (-(1 << 15), (1 << 15) - 1)
    wide = tirx.decl_buffer([4], "int32")[0]
    assert ends_of(wide) is None and ends_of(wide.astype("uint8").astype("int32")) == (0, 255)


def test_arrays_of_pairs_are_not_arrays_of_quads():
    assert pack_quads(SIGNED, 0).shape == (16,) and pack_pairs(SIGNED, 0).shape == (32,)

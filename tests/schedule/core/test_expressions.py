# SPDX-License-Identifier: Apache-2.0
"""Questions about expressions, on accesses of which the answer is known."""

import random

import pytest
from tvm import tirx

from smartmem_tvm.schedule.core.expressions import Walk, contiguous_run, intervals
from smartmem_tvm.schedule.core.nest import fresh, index


def rows_of(length: int):
    """Access to a buffer of rows of `length` elements with a gap behind each, along the fused index."""
    buffer = tirx.decl_buffer([index(64), index(length + 1)], "float32")
    return lambda at: (buffer, [tirx.floordiv(at, index(length)), tirx.floormod(at, index(length))])


@pytest.mark.parametrize(
    ("length", "most", "run"), [(15, 30, 15), (15, 15, 15), (5, 15, 1), (7, 15, 1), (6, 24, 6), (3, 15, 3), (8, 16, 8)]
)
def test_a_run_divides_the_longest_one_of_interest(length, most, run):
    """Whoever copies `most` elements run by run copies them all."""
    found = contiguous_run(rows_of(length), 64 * length, {}, most)
    assert found == run and most % found == 0


def test_a_loop_falls_into_parts_in_which_conditions_on_its_place_hold_or_do_not():
    k, j = fresh("k"), fresh("j")
    x, y, z = (tirx.decl_buffer([index(64), index(9)], "float32", name) for name in "xyz")
    joined = tirx.if_then_else(k >= 12, z[k - 12, j], tirx.if_then_else(k >= 5, y[k - 5, j], x[k, j]))
    assert intervals(joined, k, {k: 19, j: 9}) == [(0, 5), (5, 7), (12, 7)]
    assert intervals(joined, j, {k: 19, j: 9}) == [(0, 9)]
    padded = tirx.if_then_else(k + j >= 3, x[k, j], tirx.const(0, "float32"))
    assert intervals(padded, k, {k: 19, j: 9}) == [(0, 19)]
    inside = tirx.if_then_else(tirx.all(k >= 1, k < 18), x[k, j], tirx.const(0, "float32"))
    assert intervals(inside, k, {k: 19, j: 9}) == [(0, 1), (1, 17), (18, 1)]


def test_a_loop_that_would_fall_into_too_many_parts_is_left_whole():
    k, x = fresh("k"), tirx.decl_buffer([index(400)], "float32")
    every_other = tirx.if_then_else(tirx.floormod(k, index(2)).equal(index(0)), x[k], tirx.const(0, "float32"))
    assert intervals(every_other, k, {k: 400}) == [(0, 400)]


def drawn_index(rng: random.Random, vars_: list, table):
    """A sum or difference of some iterators, of multiples of them, and of what is divided or looked up."""

    def term():
        var, number = rng.choice(vars_), index(rng.choice((1, 2, 3, 4, 8)))
        return rng.choice(
            (
                var,
                var,
                var * number,
                tirx.floordiv(var + index(rng.choice((0, 1))), number),
                tirx.floormod(var, number),
                tirx.floordiv(var * number + rng.choice(vars_), number),
                table[var],
                index(rng.choice((0, 5))),
            )
        )

    found = term()
    for _ in range(rng.randrange(3)):
        found = found + term() if rng.random() < 0.8 else found - term()
    return found * index(3) if rng.random() < 0.2 else found


@pytest.mark.parametrize("seed", range(40))
def test_strides_are_those_that_the_simplifier_finds(seed):
    """Most are read off the sums in an index; extents of 1 and 2, unit dimensions and divided iterators included."""
    rng, vars_ = random.Random(seed), [fresh(name) for name in "abcd"]
    table = tirx.decl_buffer([index(64)], "int64")
    extents = {var: rng.choice((1, 2, 3, 4, 5, 8, 16)) for var in vars_}
    for _ in range(5):
        shape = [rng.choice((1, 2, 3, 8, 17)) for _ in range(rng.choice((1, 2, 3)))]
        buffer, indices = tirx.decl_buffer(shape, "float32"), [drawn_index(rng, vars_, table) for _ in shape]
        walk = Walk(extents)
        offset = walk.offset(buffer, indices)
        assert [walk.stride(buffer, indices, var) for var in vars_] == [walk.step(offset, var) for var in vars_]

# SPDX-License-Identifier: Apache-2.0
"""Questions about expressions, on accesses of which the answer is known."""

import pytest
from tvm import tirx

from smartmem_tvm.schedule.core.expressions import contiguous_run
from smartmem_tvm.schedule.core.nest import index


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

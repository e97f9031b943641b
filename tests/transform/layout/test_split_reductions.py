# SPDX-License-Identifier: Apache-2.0
"""SplitReductions: divisions of a reduction index become loops, where they line up."""

import pytest
import tvm_ffi

from helpers import assert_same_results, legal, nodes, op, random
from module_lines import assert_lines
from smartmem_tvm.ir.index_map import division_count
from smartmem_tvm.transform import EliminateLayout, SplitReductions


def merged_heads(x, w):
    """The output projection of attention reads heads, tokens, width as tokens times (heads, width)."""
    heads, tokens, width = 3, 5, 4
    return op.matmul(op.reshape(op.permute_dims(x, (1, 0, 2)), (tokens, heads * width)), w)


def split(build, *shapes):
    """The module before and after, and the reduction extents of its only kernel."""
    before = EliminateLayout()(legal(build, *shapes))
    after = SplitReductions()(before)
    assert_same_results(before, after, *random(*shapes))
    return before, after


def extents(mod) -> list[int]:
    (node,) = nodes(mod)
    stage = node.kernel.stages[0]
    return [stage.extents[v] for v in stage.reduction]


def divisions(mod) -> int:
    return sum(division_count(stage.body) for node in nodes(mod) for stage in node.kernel.stages)


def test_before_and_after():
    _, after = split(merged_heads, (3, 5, 4), (12, 7))
    assert_lines(
        after,
        """
        for i0, i1, k_0, k_1 in grid(5, 7, 3, 4):
            matmul[i0, i1] = 0.0
            matmul[i0, i1] = matmul[i0, i1] + x0[k_0, i0, k_1] * x1[k_0 * 4 + k_1, i1]
        gv = call matmul1(x1, x0)
        """,
    )


def test_three_digits():
    """A divisor of a divisor: 24 = 2 * 3 * 4."""

    def build(x, w):
        return op.matmul(op.reshape(op.permute_dims(x, (3, 1, 0, 2)), (5, 24)), w)

    before, after = split(build, (3, 2, 4, 5), (24, 7))
    assert (extents(before), extents(after)) == ([24], [2, 3, 4])
    assert divisions(after) == 0


def test_both_operands_cut_in_the_same_places():
    def build(x, y):
        left = op.reshape(op.permute_dims(x, (1, 0, 2)), (5, 12))
        right = op.reshape(op.permute_dims(y, (1, 0, 2)), (12, 7))
        return op.matmul(left, right)

    before, after = split(build, (3, 5, 4), (4, 3, 7))
    assert (extents(before), extents(after)) == ([12], [3, 4])
    assert divisions(after) == 0


def test_a_sum():
    def build(x):
        return op.sum(op.reshape(op.permute_dims(x, (1, 0, 2)), (5, 12)), axis=1)

    before, after = split(build, (3, 5, 4))
    assert (extents(before), extents(after)) == ([12], [3, 4])


UNCHANGED = {
    "no division": (op.matmul, (4, 6), (6, 3)),
    "divisions of spatial axes only": (
        lambda x, w: op.matmul(op.permute_dims(op.reshape(x, (6, 20))), w),
        (6, 4, 5),
        (6, 3),
    ),
    "pointwise": (lambda x: op.exp(op.reshape(op.permute_dims(x), (12,))), (3, 4)),
}


@pytest.mark.parametrize("case", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_left_alone(case):
    before, after = split(*case)
    assert tvm_ffi.structural_equal(before, after)


def test_divisors_that_do_not_line_up_stay():
    """One operand cuts 12 by fours, the other by sixes: no common digits."""

    def build(x, y):
        left = op.reshape(op.permute_dims(x, (1, 0, 2)), (5, 12))
        right = op.reshape(op.permute_dims(y, (1, 0, 2)), (12, 7))
        return op.matmul(left, right)

    before, after = split(build, (3, 5, 4), (6, 2, 7))
    assert extents(before) == extents(after) == [12]

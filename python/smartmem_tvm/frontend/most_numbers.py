# SPDX-License-Identifier: Apache-2.0
"""The most numbers that a tensor may have."""

from collections.abc import Iterable
from math import prod

MOST_NUMBERS = 2**31 - 1
"""The limit for one tensor that a model takes or computes: kernels index with 32 bits."""


def more_than_most(sizes: Iterable[int]) -> int:
    """Return the number of elements of a tensor if it exceeds `MOST_NUMBERS`, otherwise 0.

    Sizes of 0 count as 1: the other sizes of an empty array have to be in range, too.
    """
    count = prod(int(size) or 1 for size in sizes)
    return count if count > MOST_NUMBERS else 0

# SPDX-License-Identifier: Apache-2.0
"""The most numbers that a tensor may have."""

from collections.abc import Iterable
from math import prod

MOST_NUMBERS = 2**31 - 1
"""Of one tensor that a model takes or computes."""


def more_than_most(sizes: Iterable[int]) -> int:
    """How many numbers a tensor has, if they are more than `MOST_NUMBERS`; otherwise 0.

    Sizes of 0 are left out: no array has such others beside one.
    """
    count = prod(int(size) or 1 for size in sizes)
    return count if count > MOST_NUMBERS else 0

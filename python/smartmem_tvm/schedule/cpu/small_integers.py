# SPDX-License-Identifier: Apache-2.0
"""Bounds of the operands of an integer sum: of padded copies that its kernel makes, and of constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import ir, tirx

from ...ir.kernel import Kernel, Stage


def copies_before(kernel: Kernel, at: int) -> dict:
    """Return buffer -> the stage that writes each of its elements once, for the stages before number `at`.

    The order of a copy's dimensions in memory may be another one than that of the stage's iterators.
    """
    return {stage.body.buffer: stage for stage in kernel.stages[:at] if _writes_each_once(stage)}


def _writes_each_once(stage: Stage) -> bool:
    if stage.reduction or not isinstance(stage.body, tirx.BufferStore):
        return False
    used = [place for place in stage.body.indices if isinstance(place, ir.Var)]
    rest = [place for place in stage.body.indices if not isinstance(place, ir.Var)]
    every = all(any(var.same_as(place) for place in used) for var in stage.spatial if stage.extents[var] > 1)
    return every and len(set(map(hash, used))) == len(used) and all(isinstance(place, tirx.IntImm) for place in rest)


def least_and_largest(arrays: Sequence[np.ndarray]) -> tuple[int, int]:
    """Return the least and the largest number of integer arrays, and of 0."""
    return min(int(each.min(initial=0)) for each in arrays), max(int(each.max(initial=0)) for each in arrays)

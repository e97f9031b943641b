# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a length at a capacity, in steps of sums: which lengths need no kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm

from ..ir.index_map import variables
from ..ir.kernel import Kernel, Opaque, Stage, shape_of
from ..ir.mask_positions import Extent
from .item_cost import COPIED, MORE, WEIGHT, launch
from .items import Mixed
from .position_work import LengthWork, extent_of

# Rows in steps of which loops over rows end behind the length: those of `schedule/cpu/gemm/axis.py`, by definition.
_STRIP = 2
# Rows for a weight below which a capacity takes longer, and how many times: each tile prefetches its share of the next
# panel, and most tiles are left out. Measured: BERT at a capacity of 128 on one thread of an AMD EPYC with AVX-512 takes
# 1.10x of a static compile of 5 positions, 1.21x of 11, 0.94x of 16, and 0.89x of 20 (2026-11-30).
_FEW_ROWS, _FEW = 16, 1.2
# Steps of sums that a step of a maximum, or of a sum of what one operand says, takes: exponentials, mostly. Measured:
# an exponential of AVX-512 takes a cycle of a float, in which two multiply-adds of 16 floats end.
_OF_ROW = 24


@dataclass(frozen=True)
class LengthSum:
    """A loop that adds up.

    Attributes
    ----------
    steps : int
        Those of its iterators that do not depend on the length, together.
    written, added : tuple of Extent
        Iterators over positions: of the result, and of the sum.
    weights : int
        Numbers of the tensors without positions that it reads.
    ends : bool
        Whether its loops over results end behind the length; those of windows do not.
    """

    steps: int
    written: tuple[Extent, ...]
    added: tuple[Extent, ...]
    weights: int
    ends: bool

    def cost(self, length: int, capacity: int) -> int:
        """Return the steps for a length at a capacity."""
        rows = _up(length, capacity, _STRIP) if self.ends else capacity
        steps = (
            self.steps * prod(each.of(rows) for each in self.written) * prod(each.of(capacity) for each in self.added)
        )
        slower = _FEW if length < capacity and steps < _FEW_ROWS * self.weights else 1
        return round(slower * max(steps, WEIGHT * self.weights))


def _up(length: int, capacity: int, step: int) -> int:
    """Return the length in whole steps, up to the capacity; a function of its own wastes nothing."""
    return length if length == capacity else min(-(-length // step) * step, capacity)


def length_sums(work: LengthWork, lengths: tuple[int, int]) -> list[LengthSum]:
    """Return what adds up in a model whose first positions do not depend on its length.

    Parameters
    ----------
    work : LengthWork
        What `positions.length_work` found at two lengths.
    lengths : tuple of int
        These lengths.

    Raises
    ------
    Mixed
        If an operator's loops cannot be read, or differ in more than their extents.
    """
    found = []
    for operator in work.operators:
        try:
            for pair in operator.loops():
                found += _sums_of(*pair, lengths, work.numbers)
        except Opaque as reason:
            raise Mixed(str(reason)) from None
    return found


def _sums_of(small: Kernel, large: Kernel, lengths: tuple[int, int], numbers: Sequence[Extent]) -> list[LengthSum]:
    same = [
        shape_of(one) == shape_of(other) for one, other in zip(small.inputs, large.inputs, strict=True)
    ]  # tensors without positions
    weights = [buffer for buffer, alike in zip(large.inputs, same, strict=True) if alike]
    if len(small.stages) != len(large.stages):
        raise Mixed("has other loops for another length")
    found = []
    for before, stage in zip(small.stages, large.stages):
        if not stage.reduction:
            continue
        steps, along = 1, {}
        for one, other in zip(before.iters, stage.iters):
            a, b = int(one.dom.extent), int(other.dom.extent)
            extent = None if a == b else extent_of(a, b, lengths, numbers)
            if a != b and extent is None:
                raise Mixed("has other loops for another length")
            if extent is None:
                steps *= b
            else:
                along[other.var] = extent
        written = tuple(extent for var, extent in along.items() if any(var.same_as(each) for each in stage.spatial))
        added = tuple(extent for var, extent in along.items() if any(var.same_as(each) for each in stage.reduction))
        reads = len({load.source for load in stage.loads} - {stage.body.buffer})
        read = sum(prod(shape_of(buffer)) for buffer in weights if stage.reads(buffer))
        found.append(
            LengthSum(steps * (_OF_ROW if reads == 1 else 1), written, added, read, not _slides(stage, list(along)))
        )
    return found


def _slides(stage: Stage, along: list) -> bool:
    """Whether a loop reads neighbours along the positions."""
    for load in stage.loads:
        for index in load.indices:
            named = [var for var in variables(index) if not isinstance(var, tvm.ir.TensorLoad)]
            over = any(var.same_as(each) for var in named for each in along)
            if over and any(var.same_as(each) for var in named for each in stage.reduction) and len(named) > 1:
                return True
    return False


def served(sums: Sequence[LengthSum], kernels: int, copied: int, lengths: Sequence[int], target=None) -> dict[int, int]:
    """Return the lengths that a larger one computes in nearly the same time.

    Parameters
    ----------
    kernels : int
        Launches of a call.
    copied : int
        Numbers in the inputs and results of a position, which are copied to and from a capacity.
    lengths : sequence of int
        Those that a model is called with.

    Returns
    -------
    dict
        Length -> the capacity that computes it, one of `lengths` that is no key.
    """
    found: dict[int, int] = {}
    capacity = None
    for length in sorted(lengths, reverse=True):
        alone = predicted(sums, kernels, length, length, target)
        if capacity is not None:
            there = predicted(sums, kernels, length, capacity, target) + COPIED * copied * capacity
            if there <= MORE * alone:
                found[length] = capacity
                continue
        capacity = length
    return found


def predicted(sums: Sequence[LengthSum], kernels: int, length: int, capacity: int, target=None) -> int:
    """Return the predicted time of a length at a capacity, without copies, in steps of sums."""
    return sum(each.cost(length, capacity) for each in sums) + launch(target) * kernels

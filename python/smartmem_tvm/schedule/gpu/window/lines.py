# SPDX-License-Identifier: Apache-2.0
"""Coalescing of a sliding window's loads: the values of a thread, and the cache lines that a warp touches for each.

A load of a warp takes a cycle for each line that it touches. If each thread has eight results along the innermost axis
in memory, threads are eight elements apart: a float16 load of a warp touches four lines. If threads slide along the
other axis, it touches one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from tvm import DataType

from ....ir.walk import loads
from ...core.expressions import Walk
from ...core.reduction import Reduction
from .. import machine
from ..cost import BlockWork
from ..machine import WARP


@dataclass(frozen=True, eq=False)
class Lines:
    """The accesses of a reduction whose threads compute several neighbouring results each.

    Attributes
    ----------
    order : tuple of tirx.Var
        Spatial iterators, in the order in which threads take them; the last one runs fastest.
    """

    reduction: Reduction
    order: tuple

    @cached_property
    def _strides(self) -> list[dict] | None:
        """Strides in bytes along each iterator, of each load and last of the result; None if one is not fixed."""
        r, walk = self.reduction, Walk(self.reduction.extents)
        accesses = [(load.source, load.indices) for load in loads(r.term)]
        found = []
        for buffer, indices in (*accesses, (r.output, r.indices)):
            size = DataType(str(buffer.dtype)).itemsize
            steps = {v: walk.stride(buffer, indices, v) for v in (*self.order, *r.reduce)}
            if None in steps.values():
                return None
            found.append({v: step * size for v, step in steps.items()})
        return found

    @property
    def known(self) -> bool:
        """Whether every access has a fixed stride along every iterator."""
        return self._strides is not None

    def work(self, tile: Mapping, taps: Sequence) -> BlockWork:
        """Return the work of a warp, as turns for each result of one of its threads.

        Parameters
        ----------
        tile : mapping of tirx.Var to int
            Results of a thread along spatial iterators.
        taps : sequence of tirx.Var
            The last iterators of the sum, which are unrolled: results share the values that they load.
        """
        extents = self.reduction.extents
        results, written = prod(tile.values()), prod(extents[v] for v in taps)
        turns = prod(extents[v] for v in self.reduction.reduce) // written
        lanes = self._lanes(tile)
        *read, store = self._strides
        values = self.values(tile, taps)
        lines = [_touched(step, tile, lanes) for step in read]
        touched = turns * sum(a * b for a, b in zip(values, lines, strict=True)) + results * _touched(
            store, tile, lanes
        )
        issued = turns * (written * results + machine.GUARDED * sum(values))
        return BlockWork(1 / results, instructions=issued, lines=touched, overlap=1.0)

    def values(self, tile: Mapping, taps: Sequence) -> list[int]:
        """Return how many different values of each operand a thread loads in a turn; see `work`."""
        shared = [*tile.items(), *((v, self.reduction.extents[v]) for v in taps)]
        return [np.unique(_offsets(step, shared)).size for step in self._strides[:-1]]

    def held(self, tile: Mapping, taps: Sequence) -> int:
        """Return the numbers of four bytes of these values; see `work`."""
        sizes = [DataType(str(load.source.dtype)).itemsize for load in loads(self.reduction.term)]
        return sum(size * count for size, count in zip(sizes, self.values(tile, taps), strict=True)) // 4

    def _lanes(self, tile: Mapping) -> dict:
        """Return for each iterator the positions of the threads of the first warp along it, in tiles."""
        extents = [self.reduction.extents[v] // tile.get(v, 1) for v in self.order]
        lanes = np.arange(min(WARP, prod(extents)))
        return dict(zip(self.order, np.unravel_index(lanes, extents), strict=True)) if extents else {}


def _offsets(steps: Mapping, counts: list) -> np.ndarray:
    """Return the distinct offsets of some values from the first one, in bytes."""
    total = np.zeros(1, "int64")
    for var, count in counts:
        total = np.unique(np.add.outer(total, steps[var] * np.arange(count)))
    return total


def _touched(steps: Mapping, tile: Mapping, lanes: Mapping) -> int:
    """Return the number of lines that the threads of a warp touch."""
    places = sum(steps[v] * tile.get(v, 1) * at for v, at in lanes.items())
    return np.unique(places // machine.LINE_BYTES).size

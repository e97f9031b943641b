# SPDX-License-Identifier: Apache-2.0
"""Attention over keys in parts: what thread blocks leave of their parts, and the second launch, which adds it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import tirx

from ....ir.half import FLOAT
from ...core.nest import UNROLL, Scope, allocate, block, current_index_type, index, store
from ..gemm.ptx import barrier
from ..launch import launch, registers, shared, when
from .over_keys_tile import KeyShape, KeyTile
from .softmax import SoftmaxAttention

LOWEST = -3.4028234663852886e38  # of all floats the smallest, below all scores but -inf: by definition of IEEE 754
_ADDING = 256  # threads of a thread block that adds parts. Chosen: four per column of a head of 64 numbers


@dataclass(eq=False)
class PartsOfKeys:
    """The results of parts of the keys, in memory, and the statements that add them.

    Attributes
    ----------
    attention : SoftmaxAttention
    length : tirx.Buffer
        The number of keys, in the device's memory.
    shape : KeyShape
    tile : KeyTile
    count : int
        Parts of the keys.
    results : tirx.Buffer
        Of each part: the sum of weighted values.
    ends : tirx.Buffer
        Of each part: the largest score, and the sum of weights.
    """

    attention: SoftmaxAttention
    length: object
    shape: KeyShape
    tile: KeyTile
    scope: Scope = field(default_factory=Scope)

    def __post_init__(self):
        rows, self.count = self.shape.heads * self.shape.group, self.tile.parts(self.shape)
        self.results = _memory(rows * self.count * self.shape.width, "parts")
        self.ends = _memory(rows * self.count * 2, "ends")

    def end(self, row, part, which: int):
        """Return the place of the largest score (0) or the sum of weights (1) of a row and a part."""
        return (row * index(self.count) + part) * index(2) + index(which)

    def keys(self):
        """Return the number of keys of this call."""
        return self.length[index(0)].astype(current_index_type())

    def finish(self, value, total, batch, row, column) -> tirx.Stmt:
        """Divide, finish and store a result; where the model replaces NaN it does so by zero, as `BoundKeys` proved."""
        if self.attention.lonely is not None:
            total = tirx.Select(total > zero(), total, number_of(1.0))
        if self.attention.normalised:
            value = value / total
        return self.attention.leave(value, total, batch, row, column)

    def second(self) -> tirx.Stmt:
        """Return the second launch."""
        return launch(self.scope, self.shape.heads * self.shape.group, adders(self.shape), self.add)

    def add(self, number, thread) -> tirx.Stmt:
        """Return the statements of a thread block of the second launch: one row, all of its parts."""
        shape, parts, simplify = self.shape, self.count, self.scope.analyzer.simplify
        slices, width = adders(shape) // shape.width, index(shape.width)
        column, part = (simplify(f(thread, width)) for f in (tirx.floormod, tirx.floordiv))
        used = tirx.floordiv(self.keys() + index(self.tile.keys - 1), index(self.tile.keys))
        most, sums = registers(1, FLOAT, "most"), registers(3, FLOAT, "sums")
        kept = shared(slices * (shape.width + 1), FLOAT, "kept")
        at = number * index(parts)

        def end(p, which: int):
            return self.ends[(at + p) * index(2) + index(which)]

        def larger(p) -> tirx.Stmt:
            value = tirx.Select(p < used, end(p, 0), number_of(LOWEST))
            return store(most, tirx.max(most[index(0)], value), 0)

        def more(c) -> tirx.Stmt:
            p = simplify(c * index(slices) + part)
            factor = tirx.exp(end(p, 0) - most[index(0)])
            body = block(
                store(sums, factor, 2),
                store(sums, sums[index(0)] + sums[index(2)] * self.results[(at + p) * width + column], 0),
                store(sums, sums[index(1)] + sums[index(2)] * end(p, 1), 1),
            )
            return tirx.IfThenElse(p < used, body, None)

        def total(which: int):
            place = column if which == 0 else width
            value = kept[place]
            for s in range(1, slices):
                value = value + kept[index(s * (shape.width + 1)) + place]
            return value

        batch, row = (simplify(f(number, index(shape.rows))) for f in (tirx.floordiv, tirx.floormod))
        turns = -(-parts // slices)
        body = block(
            store(most, number_of(LOWEST), 0),
            self.scope.loop(parts, larger, "p", UNROLL if parts <= 64 else 0),
            store(sums, zero(), 0),
            store(sums, zero(), 1),
            self.scope.loop(turns, more, "c", UNROLL if turns <= 16 else 0),
            store(kept, sums[index(0)], part * index(shape.width + 1) + column),
            when(column.equal(index(0)), store(kept, sums[index(1)], part * index(shape.width + 1) + width)),
            barrier(),
            when(part.equal(index(0)), self.scope.simplify(self.finish(total(0), total(1), batch, row, column))),
        )
        return allocate([most, sums, kept], body)


def adders(shape: KeyShape) -> int:
    """Return the threads of a thread block that adds parts: some of each column."""
    return max(1, _ADDING // shape.width) * shape.width


def _memory(count: int, name: str):
    return tirx.decl_buffer([index(count)], FLOAT, name, layout=None)


def number_of(value: float):
    """Return a number of the type in which scores and sums are."""
    return tirx.const(value, FLOAT)


def zero():
    """Return zero in that type."""
    return number_of(0.0)

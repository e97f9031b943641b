# SPDX-License-Identifier: Apache-2.0
"""The rows, or the columns, of a task's results, cut into strips for the micro-kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd

from tvm import tirx

from ...core.nest import Scope, block, index
from ...core.positions import Inside, guarded
from .chunks import Chunks, in_last_chunk, of_chunk

# Rows by which the last strip before the end of a length is lower. Chosen: a row is for nothing at most, and a tile of
# eight rows has three lower ones beside it; with steps of one row code would be 4.5 times as long instead of 2.5 times.
_STEP = 2


@dataclass(frozen=True, eq=False)
class Strip:
    """Adjacent rows, or columns, of one tile of the micro-kernel.

    Attributes
    ----------
    first : PrimExpr
        The first of them.
    size : int
        Number of them, with those that only pad a panel.
    number : PrimExpr
        Pieces of the same chunk before this one.
    kept : int
        Number of them that are results.
    """

    first: tirx.PrimExpr
    size: int
    number: tirx.PrimExpr
    kept: int


@dataclass(frozen=True)
class Span:
    """`count` strips of `size` rows, or columns, from number `first` on.

    Attributes
    ----------
    kept : int
        Rows, or columns, of a strip that are results; 0 for all.
    """

    first: int
    count: int
    size: int
    kept: int = 0


@dataclass(frozen=True, eq=False)
class Axis:
    """The strips of one axis in one task.

    Attributes
    ----------
    ends : sequence of Span
        All strips; if the axis is divided among tasks, those that only the last chunk has.
    size : int
        Rows, or columns, of the strips that every chunk has.
    chunks : Chunks or None
        These strips in each chunk; None if all strips are in `ends`.
    chunk : PrimExpr
        Number of this task's chunk.
    only_ends : bool
        Whether no chunk has such a strip.
    as_product : bool
        Whether the first row of a strip is a product with `size`, whose division by a side of a tile is none in the
        code; else a sum, of which the rows' offsets in an image are simplified further.
    inside : Inside or None
        Which strips are computed; None if all are.
    lower : bool
        Whether the last strip that is computed may be one of fewer rows; panels of columns have one width.
    """

    ends: Sequence[Span]
    size: int = 0
    chunks: Chunks | None = None
    chunk: tirx.PrimExpr | None = None
    only_ends: bool = False
    as_product: bool = False
    inside: Inside | None = None
    lower: bool = False

    @classmethod
    def whole(cls, *spans: tuple[int, int, int], inside: Inside | None = None, lower: bool = False) -> Axis:
        """Return an axis that one task has whole, from (first, count, size) of its strips."""
        return cls([Span(*each) for each in spans], inside=inside, lower=lower)

    def each(self, scope: Scope, body: Callable[[Strip], tirx.Stmt], name: str = "tile") -> tirx.Stmt:
        """Return ``body(strip)`` for each strip in turn."""
        main, done, ends = None, 0, []
        if self.chunks is not None and not self.only_ends:
            done = self.chunks.last

            def whole(t) -> tirx.Stmt:
                first = self._first_of(t)
                return self._up_to_the_end(Strip(first, self.size, t, self.size), body)

            main = scope.loop(of_chunk(self.chunk, self.chunks), whole, name, most=self.chunks.longest)
        for span in self.ends:

            def one(t, span: Span = span, done: int = done) -> tirx.Stmt:
                at = index(span.first) + t * index(span.size)
                strip = Strip(at, span.size, index(done) + t, span.kept or span.size)
                return self._up_to_the_end(strip, body)

            ends.append(scope.loop(span.count, one, name))
            done += span.count
        return block(main, *(ends if self.chunks is None else in_last_chunk(self.chunk, self.chunks, ends)))

    def _up_to_the_end(self, strip: Strip, body: Callable[[Strip], tirx.Stmt]) -> tirx.Stmt:
        """Return what computes a strip, or so many rows of it as are before the end, in steps."""
        sizes = [strip.size]
        in_rows = self.inside is not None and self.inside.line is None
        if in_rows and self.lower and strip.kept == strip.size:
            whole = gcd(self.inside.each, strip.size)  # the last row before the end is one of these
            step = whole if whole > 1 else _STEP
            sizes = [*range(step, strip.size, step), strip.size]
        found = None
        for before, size in zip((0, *sizes), sizes):
            one = body(replace(strip, size=size, kept=min(size, strip.kept)))
            rest = strip.first + index(before), strip.size - before
            found = one if found is None else tirx.IfThenElse(self.inside(*rest), one, found)
        return guarded(self.inside, strip.first, strip.size, found)

    def _first_of(self, number):
        """Return the first row, or column, of a strip that every chunk has."""
        length = self.chunks.length
        if self.as_product:
            return (self.chunk * index(length) + number) * index(self.size)
        return self.chunk * index(length * self.size) + number * index(self.size)

# SPDX-License-Identifier: Apache-2.0
"""The rows, or the columns, of a task's results, cut into strips for the micro-kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from ...core.nest import Scope, block, index
from ...core.positions import guarded
from .chunks import Chunks, in_last_chunk, of_chunk


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
    inside : callable or None
        First row, or column -> the condition under which a strip is computed; None if all are.
    """

    ends: Sequence[Span]
    size: int = 0
    chunks: Chunks | None = None
    chunk: tirx.PrimExpr | None = None
    only_ends: bool = False
    as_product: bool = False
    inside: Callable | None = None

    @classmethod
    def whole(cls, *spans: tuple[int, int, int], inside: Callable | None = None) -> Axis:
        """Return an axis that one task has whole, from (first, count, size) of its strips."""
        return cls([Span(*each) for each in spans], inside=inside)

    def each(self, scope: Scope, body: Callable[[Strip], tirx.Stmt], name: str = "tile") -> tirx.Stmt:
        """Return ``body(strip)`` for each strip in turn."""
        main, done, ends = None, 0, []
        if self.chunks is not None and not self.only_ends:
            done = self.chunks.last

            def whole(t) -> tirx.Stmt:
                first = self._first_of(t)
                return guarded(self.inside, first, body(Strip(first, self.size, t, self.size)))

            main = scope.loop(of_chunk(self.chunk, self.chunks), whole, name, most=self.chunks.longest)
        for span in self.ends:

            def one(t, span: Span = span, done: int = done) -> tirx.Stmt:
                at = index(span.first) + t * index(span.size)
                strip = Strip(at, span.size, index(done) + t, span.kept or span.size)
                return guarded(self.inside, at, body(strip))

            ends.append(scope.loop(span.count, one, name))
            done += span.count
        return block(main, *(ends if self.chunks is None else in_last_chunk(self.chunk, self.chunks, ends)))

    def _first_of(self, number):
        """Return the first row, or column, of a strip that every chunk has."""
        length = self.chunks.length
        if self.as_product:
            return (self.chunk * index(length) + number) * index(self.size)
        return self.chunk * index(length * self.size) + number * index(self.size)

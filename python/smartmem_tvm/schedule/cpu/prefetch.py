# SPDX-License-Identifier: Apache-2.0
"""Prefetches of a product: the next panel, and the cache lines of results, while it multiplies.

The hardware prefetcher follows a panel that is read in order, but not across a page of memory, nor from one panel to
the next. Each tile prefetches its share, about one line before each piece of its depth, which is a few unrolled steps.
Many prefetches at once would delay the loads, and a loop of them in each piece would end in a mispredicted branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tvm import DataType, tirx

from ...ir.walk import loads
from ..core.expressions import uses
from ..core.nest import Scope, block, index
from ..core.reduction import Reduction
from . import machine

# Steps along the depth that are unrolled by default. Chosen: a tile prefetches about one line before each piece of so
# many; the times in docs/cpu.md (2026-11-26) are of this number, and no other one was kept.
UNROLLED = 4
_READ, _WRITE = 0, 1  # operands of the instruction `llvm.prefetch`, by definition of LLVM
_SECOND_LEVEL, _FIRST_LEVEL = 2, 3  # operands of the instruction, by definition: localities
_DATA = 1  # operand of the instruction, by definition: not the instruction cache

Prefetch = Callable[[object], tirx.Stmt]
"""Number of a piece of a tile's depth -> the prefetches in front of it."""


def in_pieces(
    scope: Scope, count: int, unroll: int, add: Callable, prefetch: Prefetch | None = None, before=0
) -> tirx.Stmt:
    """Return ``add(step)`` for `count` steps along the depth, as a loop over unrolled pieces.

    Parameters
    ----------
    unroll : int
        Steps of a piece; the remaining steps are unrolled after the loop.
    prefetch : Prefetch or None
        The prefetches in front of each piece.
    before : tirx.PrimExpr
        Number of pieces that other loops have done.
    """
    unroll = min(unroll, count)

    def piece(q) -> tirx.Stmt:
        steps = (add(scope.simplify(q * index(unroll) + index(u))) for u in range(unroll))
        return block(prefetch(scope.simplify(before + q)) if prefetch else None, *steps)

    whole = count // unroll
    rest = (add(index(step)) for step in range(whole * unroll, count))
    return block(scope.loop(whole, piece, "k"), *rest)


@dataclass(frozen=True)
class NextPanel:
    """The next panel, with one row for each step along the depth; a row is whole cache lines, or the panel contiguous.

    Attributes
    ----------
    depth, width : int
        Rows and columns.
    tiles : int
        Number of tiles that share the prefetches.
    steps : int
        Steps of a piece of a tile's depth.
    at : callable
        ``(row, column)`` -> the load of an element.
    least : int
        Lines in front of each piece, at least: with more of them fewer tiles share the prefetches.
    """

    depth: int
    width: int
    tiles: int
    steps: int
    at: Callable
    least: int = 1

    def of_tile(self, tile) -> Prefetch:
        """Return the prefetches of tile number `tile`; tiles after the last line prefetch the last lines again."""
        pieces = max(1, self.depth // self.steps)
        each = max(self.least, -(-self._lines // (self.tiles * pieces)))
        beyond = pieces * each > self._lines
        first = tirx.min(tile * index(pieces * each), index(max(0, self._lines - pieces * each)))

        def prefetch(piece) -> tirx.Stmt:
            lines = [first + piece * index(each) + index(n) for n in range(each)]
            lines = [tirx.min(line, index(self._lines - 1)) for line in lines] if beyond else lines
            return block(*(_prefetch_line(self.at(*self._place(line)), _READ, _SECOND_LEVEL) for line in lines))

        return prefetch

    @property
    def _lines(self) -> int:
        return -(-self.depth * self.width // self._items)

    def _place(self, line) -> tuple:
        """Return the row and column of the first element of a cache line."""
        rows = self._items // gcd(self._items, self.width)  # rows that make up whole lines
        lines = rows * self.width // self._items
        element = tirx.floormod(line, index(lines)) * index(self._items)
        row = tirx.floordiv(line, index(lines)) * index(rows) + tirx.floordiv(element, index(self.width))
        return row, tirx.floormod(element, index(self.width))

    @cached_property
    def _items(self) -> int:
        """Elements of a cache line."""
        return max(1, machine.LINE_BYTES // _item_bytes(self.at(index(0), index(0))))


@dataclass(frozen=True)
class NextRows:
    """The rows of the next tile, contiguous along the depth: prefetched while those of the current tile are read.

    Attributes
    ----------
    height : int
        Rows.
    steps : int
        Steps of a piece of a tile's depth.
    at : callable
        ``(row, step)`` -> the load of an element of the next tile.
    """

    height: int
    steps: int
    at: Callable

    def beside(self, other: Prefetch | None) -> Prefetch:
        """Return the prefetches of these rows together with `other` ones."""
        line = machine.LINE_BYTES // _item_bytes(self.at(index(0), index(0)))
        turns = max(1, line // self.steps)  # pieces in a cache line; each prefetches some of the rows

        def prefetch(piece) -> tirx.Stmt:
            first, step = tirx.floormod(piece, index(turns)), piece * index(self.steps)
            rows = [tirx.min(first + index(row), index(self.height - 1)) for row in range(0, self.height, turns)]
            prefetched = (_prefetch_line(self.at(row, step), _READ, _SECOND_LEVEL) for row in rows)
            return block(other(piece) if other else None, *prefetched)

        return prefetch


def prefetch_results(reduction: Reduction, rows: Sequence, at: Callable, height: int, width: int) -> tirx.Stmt:
    """Return prefetches of the cache lines that a tile stores, and of those that its epilogue reads row by row.

    Parameters
    ----------
    rows : sequence of tirx.Var
        Iterators of rows; a load that does not depend on them, such as a bias, is in the cache.
    at : callable
        ``(load, row, column)`` -> the load at a point of the tile.
    """
    read = [each for each in loads(reduction.finish) if not each.source.same_as(reduction.accumulator)]
    found = [(reduction.output[tuple(reduction.indices)], _WRITE)]
    found += [(each, _READ) for each in read if uses(each, rows)]
    requests = []
    for load, how in found:
        step = max(1, machine.LINE_BYTES // _item_bytes(load))
        columns = sorted({*range(0, width, step), width - 1})  # a row may begin anywhere in a cache line
        places = [(row, column) for row in range(height) for column in columns]
        requests += [_prefetch_line(at(load, row, index(column)), how, _FIRST_LEVEL) for row, column in places]
    return block(*requests)


def _item_bytes(load) -> int:
    return DataType(str(load.ty.dtype)).itemsize


def _prefetch_line(load, *how: int) -> tirx.Stmt:
    numbers = (tirx.const(each, "int32") for each in (*how, _DATA))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(load), *numbers))

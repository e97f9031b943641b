# SPDX-License-Identifier: Apache-2.0
"""What a product needs next, asked for while it multiplies: the next panel, and the lines that results go to.

A processor sees that a panel is read in order, but not beyond a page of memory, nor from one panel to the next. Each
tile asks for its share, a few lines before each piece of its depth: many at once would stand in the way of its loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tvm import DataType, tirx

from ...ir.walk import loads
from ..core.expressions import largest_divisor, uses
from ..core.nest import block, index
from ..core.reduction import Reduction

_LINE_BYTES = 64
_LEAST_STEPS = 32  # along the depth between two requests: a shorter loop would be written out
# Operands of `llvm.prefetch`.
_READ, _WRITE = 0, 1
_SECOND_LEVEL, _FIRST_LEVEL = 2, 3
_DATA = 1


@dataclass(frozen=True)
class Share:
    """What one tile asks for: ``ask(number)`` before each of so many pieces of its depth."""

    pieces: int
    ask: Callable


@dataclass(frozen=True)
class NextPanel:
    """A panel, of which a row belongs to each step along the depth; rows lie next to each other in memory.

    Attributes
    ----------
    depth, width : int
        Rows and columns.
    tiles : int
        That share the work of asking for it.
    at : callable
        ``(row, column)`` -> the load of an element.
    step : int
        Pieces are of so many rows, or of several times as many.
    """

    depth: int
    width: int
    tiles: int
    at: Callable
    step: int = 1

    def share(self, tile) -> Share:
        """What tile number `tile` asks for; those that come after the last row ask for the last ones again."""
        total = self._rows * self._pieces
        first = tirx.min(tile * index(total), index(self.depth - total))
        return Share(self._pieces, lambda piece: self._ask(first + piece * index(self._rows)))

    @cached_property
    def _pieces(self) -> int:
        """Pieces of a tile's depth; they divide it, and few of them ask for nothing new."""
        most = min(self.depth // (self._unit * self.tiles), self.depth // _LEAST_STEPS)
        return largest_divisor(self.depth // self.step, most)

    @cached_property
    def _rows(self) -> int:
        """Rows that a piece asks for: whole lines."""
        wanted = -(-self.depth // (self.tiles * self._pieces * self._unit)) * self._unit
        return min(wanted, self.depth // self._pieces)

    @cached_property
    def _unit(self) -> int:
        """Rows that make up whole lines."""
        return _LINE_BYTES // gcd(_LINE_BYTES, self.width * self._item_bytes)

    @cached_property
    def _item_bytes(self) -> int:
        return _item_bytes(self.at(index(0), index(0)))

    def _ask(self, first) -> tirx.Stmt:
        elements = range(0, self._rows * self.width, max(1, _LINE_BYTES // self._item_bytes))
        places = (divmod(each, self.width) for each in elements)
        return block(
            *(_prefetch(self.at(first + index(row), index(column)), _READ, _SECOND_LEVEL) for row, column in places)
        )


@dataclass(frozen=True)
class NextRows:
    """The rows of the next tile, of an operand whose rows lie along the depth: asked for as those at hand are read.

    Attributes
    ----------
    depth, height : int
        Steps of a row, and rows.
    at : callable
        ``(row, step)`` -> the load of an element of the next tile.
    """

    depth: int
    height: int
    at: Callable

    def share(self, beside: Share | None) -> Share:
        """What a tile asks for, with what it asks for beside that."""
        pieces = beside.pieces if beside else largest_divisor(self.depth, self.depth // _LEAST_STEPS)
        length, line = self.depth // pieces, _LINE_BYTES // _item_bytes(self.at(0, index(0)))

        def ask(piece) -> tirx.Stmt:
            steps = [piece * index(length) + index(step) for step in range(0, length, line)]
            lines = [
                _prefetch(self.at(row, step), _READ, _SECOND_LEVEL) for row in range(self.height) for step in steps
            ]
            return block(beside.ask(piece) if beside else None, *lines)

        return Share(pieces, ask)


def ask_for_results(reduction: Reduction, rows: Sequence, at: Callable, height: int, width: int) -> tirx.Stmt:
    """Ask for the lines that a tile writes when it is done, and those that its epilogue reads row by row.

    Parameters
    ----------
    rows : sequence of tirx.Var
        Iterators of rows: what does not depend on them, a bias, is in the cache.
    at : callable
        ``(load, row, column)`` -> the load at a place of the tile.
    """
    read = [each for each in loads(reduction.finish) if not each.source.same_as(reduction.accumulator)]
    found = [(reduction.output[tuple(reduction.indices)], _WRITE)]
    found += [(each, _READ) for each in read if uses(each, rows)]
    requests = []
    for load, how in found:
        step = max(1, _LINE_BYTES // _item_bytes(load))
        columns = sorted({*range(0, width, step), width - 1})  # a row may begin anywhere in a line
        places = [(row, column) for row in range(height) for column in columns]
        requests += [_prefetch(at(load, row, index(column)), how, _FIRST_LEVEL) for row, column in places]
    return block(*requests)


def _item_bytes(load) -> int:
    return DataType(str(load.ty.dtype)).itemsize


def _prefetch(load, *how: int) -> tirx.Stmt:
    numbers = (tirx.const(each, "int32") for each in (*how, _DATA))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(load), *numbers))

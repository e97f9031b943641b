# SPDX-License-Identifier: Apache-2.0
"""Loops that end behind the length of a model with an open length (`transform.fuse.skip_positions`).

    for tile in range(16):                          for tile in range(16):
      out[8 * tile : 8 * tile + 8, ...] = ...         if 8 * tile < length: out[...] = ...

A rule asks `inside` for the condition of a strip of rows, by the store of its first row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tvm import ir, s_tir, sym, tirx

from ...ir.index_map import variables
from ...ir.kernel import KEYS_END, POSITIONS, shape_of
from ...ir.mask_positions import Extent
from .nest import SERIAL, VECTOR, block, current_index_type, fresh, index, index_type, loop

_VECTOR = 64  # numbers that a vectorized loop of zeros writes at most; chosen: four of the widest registers


@dataclass(frozen=True, eq=False)
class Positions:
    """The result of a kernel, how much of its `axis` is before the length, and the tensor with the length.

    So many elements behind it are `zeros`. `keys` is the iterator of its last sum that may end there, and what of it is
    before the length.
    """

    output: object
    length: object
    axis: int
    extent: Extent
    zeros: int
    keys: tuple[int, Extent] | None = None

    def end(self, dtype: str):
        """Return the first index along the axis that is behind the length."""
        return self._end(self.extent, dtype)

    def end_of_keys(self, dtype: str):
        """Return the number of terms of the last sum that are before the length."""
        return self._end(self.keys[1], dtype)

    def _end(self, extent: Extent, dtype: str):
        end = extent.of(self.length[tirx.const(0, "int64")])
        return end if str(dtype) == "int64" else tirx.Cast(dtype, end)


_POSITIONS: ContextVar[Positions | None] = ContextVar("positions of the kernel", default=None)


def positions_on(func: tirx.PrimFunc) -> Positions | None:
    """Return the positions of a kernel; None if it has none, or computes all of them."""
    if POSITIONS not in (func.attrs or {}):
        return None
    place, axis, zeros, *extent = map(int, func.attrs[POSITIONS])
    length = func.params[place]
    if str(length.dtype) != "int64" or shape_of(length) != (1,):
        raise ValueError(f"argument {place} of a kernel with positions is no length")
    keys = None
    if KEYS_END in func.attrs:
        number, *numbers = map(int, func.attrs[KEYS_END])
        keys = number, Extent(*numbers)
    return Positions(func.params[-1], length, axis, Extent(*extent), zeros, keys)


@contextmanager
def positions_of(func: tirx.PrimFunc) -> Iterator[None]:
    """Let rules end loops behind the length within the context, if the kernel has one."""
    token = _POSITIONS.set(positions_on(func))
    try:
        yield
    finally:
        _POSITIONS.reset(token)


def ending_keys() -> tuple[int, tirx.PrimExpr] | None:
    """Return the iterator of the kernel's last sum that may end at the length, and its terms up to there; else None."""
    positions = _POSITIONS.get()
    if positions is None or positions.keys is None:
        return None
    return positions.keys[0], positions.end_of_keys(current_index_type())


def has_length() -> bool:
    """Whether the kernel leaves out what is behind a length."""
    return _POSITIONS.get() is not None


@dataclass(frozen=True, eq=False)
class Inside:
    """Whether a strip of rows has positions before the length.

    Attributes
    ----------
    place : callable
        Row -> its place along the positions.
    end : PrimExpr
        The first place behind the length.
    line : PrimExpr or None
        Where rows are places of a picture, line after line, the length of a line.
    each : int
        Rows of one position, of which `end` is a multiple.
    """

    place: Callable
    end: tirx.PrimExpr
    line: tirx.PrimExpr | None = None
    each: int = 1

    def __call__(self, row, rows: int):
        """Return the condition for a strip of so many rows from `row` on."""
        before = self.place(row) < self.end
        # A strip of a picture may go on in the next line.
        return before if self.line is None else tirx.Or(before, self.place(row) + index(rows) > self.line)


def inside(first: Callable, most: int, analyzer: sym.Analyzer | None = None) -> Inside | None:
    """Return whether a strip of rows has positions before the length; None if unknown.

    Parameters
    ----------
    first : callable
        Row -> the store of a result of that row.
    most : int
        The number of rows.
    analyzer : sym.Analyzer, optional
        Knows the bounds of the loops around.
    """
    positions = _POSITIONS.get()
    if positions is None:
        return None
    row, analyzer = fresh("row"), analyzer or sym.Analyzer()
    analyzer.bind(row, ir.Range(0, index(most)))
    stored = first(row)
    if not stored.buffer.same_as(positions.output):
        return None
    at = analyzer.simplify(stored.indices[positions.axis])
    before, end = analyzer.simplify(at - row), positions.end(str(at.ty.dtype))
    if not any(row.same_as(var) for var in variables(before)):
        return Inside(lambda number: before + number, end)
    each = _side(at, row, tirx.FloorDiv)
    if each is not None:  # positions are outermost: so many rows have one position
        return Inside(lambda number: number, analyzer.simplify(end * each), each=int(each))
    line = _side(at, row, tirx.FloorMod)
    if line is None:
        return None  # rows of several items, say: a strip may end in the next item
    return Inside(lambda number: analyzer.simplify(tirx.floormod(number, line)), end, line)


def _side(at, row, kind: type):
    """Return the side of a picture, which an index along the positions divides a row by; None if it is none."""
    whole = isinstance(at, kind) and at.a.same_as(row) and isinstance(at.b, tirx.IntImm)
    return at.b if whole else None


def guarded(condition: Inside | None, first, rows: int, body: tirx.Stmt) -> tirx.Stmt:
    """Return a statement that runs where a strip of rows from `first` on has positions before the length."""
    return body if condition is None else tirx.IfThenElse(condition(first, rows), body, None)


def axis_of(output) -> int | None:
    """Return the axis of a kernel's result along which it may end at the length; None if it has none."""
    positions = _POSITIONS.get()
    return positions.axis if positions is not None and output.same_as(positions.output) else None


def before_length(first: tirx.BufferStore, body: tirx.Stmt, known: tirx.BufferStore | None = None) -> tirx.Stmt:
    """Return a statement that runs if the store of its first result is before the length.

    Parameters
    ----------
    known : BufferStore, optional
        One that is before the length, as a loop around has asked: another one at its position is not asked again.
    """
    positions = _POSITIONS.get()
    if positions is None or not first.buffer.same_as(positions.output):
        return body
    at = first.indices[positions.axis]
    if known is not None and sym.Analyzer().can_prove_equal(at, known.indices[positions.axis]):
        return body
    return tirx.IfThenElse(at < positions.end(str(at.ty.dtype)), body, None)


def with_zeros(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that writes zeros behind the length at its end, if its readers need them."""
    positions = positions_on(func)
    if positions is None or not positions.zeros:
        return func
    root = func.body.block
    filled = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, block(root.body, _zeros(positions)), root.init,
        root.alloc_buffers, root.match_buffers, root.annotations,
    )  # fmt: skip
    return func.with_body(s_tir.SBlockRealize([], True, filled))


def _zeros(positions: Positions) -> tirx.Stmt:
    output, axis = positions.output, positions.axis
    shape = shape_of(output)
    with index_type("int64"):
        start = tirx.max(positions.end("int64"), index(0))
        behind = tirx.min(index(shape[axis]) - start, index(positions.zeros))

        def at(indices: list) -> tirx.Stmt:
            place = len(indices)
            if place == len(shape):
                return tirx.BufferStore(output, tirx.const(0, output.dtype), indices)
            if place == axis:
                return loop(behind, lambda i: at([*indices, start + i]), "behind")
            last = place == len(shape) - 1 and shape[place] > 1
            return loop(
                shape[place], lambda i: at([*indices, i]), "i", VECTOR if last and shape[place] <= _VECTOR else SERIAL
            )

        return at([])

# SPDX-License-Identifier: Apache-2.0
"""Find results of a function that are an input with new rows in it, as exporters write caches of fixed size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, tirx

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RowWrite:
    """A tensor that is an input with new rows in it.

    Attributes
    ----------
    past : relax.Var
        The input.
    new : relax.Expr
        The new rows, in the dimensions of `past`.
    rows : relax.Expr
        Integers from which the number of each row comes: as many as the rows of all sequences.
    sequences : int
        1 if all sequences take the same rows, else their count.
    axis : int
        The dimension of `past` that counts its rows.
    first : bool
        Whether `rows` has only the first number of each sequence, and the others follow it.
    circular : bool
        Whether numbers start again after the last row.
    """

    past: relax.Var
    new: relax.Expr
    rows: relax.Expr
    sequences: int
    axis: int
    first: bool = False
    circular: bool = False


class Writes:
    """Finds the writes of a function.

    Parameters
    ----------
    function : relax.Function
        Of operators, before they are legalized.
    """

    def __init__(self, function: relax.Function):
        bindings = [each for block in function.body.blocks for each in block.bindings]
        self._values = {each.var: each.value for each in bindings if isinstance(each, relax.VarBinding)}
        self._inputs = set(function.params)

    def of(self, result: relax.Expr) -> RowWrite | None:
        """Return how a tensor comes from an input by new rows; None if it does in no way that is known.

        Known are ``where(numbers == place, new, past)``, ``scatter_elements`` with one number for each row,
        ``scatter_nd`` along the first dimension (also of a transposed tensor) or at whole places, of which one
        coordinate is data, and what ONNX's TensorScatter becomes.
        """
        call = self._call(result)
        found = next((found for way in self._ways() if (found := way(call)) is not None), None)
        if found is None or found.past not in self._inputs:
            return None
        return found

    def _ways(self) -> tuple[Callable, ...]:
        turned = self._by_turned_places
        return self._by_choice, self._by_elements, self._by_places, turned, self._by_coordinates, self._by_start

    def _call(self, expr: relax.Expr) -> relax.Expr:
        while isinstance(expr, relax.Var) and expr in self._values:
            expr = self._values[expr]
        return expr

    def _is(self, expr: relax.Expr, *names: str) -> bool:
        call = self._call(expr)
        return isinstance(call, ir.Call) and getattr(call.op, "name", "").removeprefix("relax.") in names

    def _input(self, expr: relax.Expr) -> relax.Expr:
        """Return the variable of an expression behind bindings that compute nothing."""
        while isinstance(expr, relax.Var) and isinstance(self._values.get(expr), relax.Var):
            expr = self._values[expr]
        return expr

    def _by_choice(self, call: relax.Expr) -> RowWrite | None:
        """``where(numbers == place, new, past)``: `numbers` counts the rows."""
        if not self._is(call, "where"):
            return None
        chosen, new, past = call.args
        if self._is(chosen, "logical_not"):
            chosen, new, past = self._call(chosen).args[0], past, new
        elif self._is(chosen, "not_equal"):
            new, past = past, new
        same, shape = self._call(self._narrow(chosen)), _shape(call)
        if not self._is(same, "equal", "not_equal") or _shape(self._input(past)) != shape:
            return None
        for numbers, place in (same.args, reversed(list(same.args))):
            axis, rows = self._counted(numbers, shape), _aligned(_shape(place), len(shape))
            if axis is None or rows is None:
                continue
            new = self._narrow(new)
            wanted = tuple(1 if at == axis else size for at, size in enumerate(shape))
            sequences = _sequences(rows, shape, axis, 1)
            if _shape(new) == wanted and sequences:
                return RowWrite(self._input(past), new, place, sequences, axis)
        return None

    def _counted(self, numbers: relax.Expr, shape: Shape) -> int | None:
        """Return the dimension that a constant counts from 0; None if it is no such constant."""
        constant = self._call(numbers)
        if not isinstance(constant, ir.GenericConst):
            return None
        sizes = _aligned(constant.value.numpy().shape, len(shape))
        places = [at for at, size in enumerate(sizes or ()) if size > 1]
        if len(places) != 1 or sizes[places[0]] != shape[places[0]]:
            return None
        return places[0] if _is_range(constant, shape[places[0]]) else None

    def _narrow(self, expr: relax.Expr) -> relax.Expr:
        """Return what is repeated along dimensions of one element."""
        while self._is(expr, "broadcast_to") and len(_shape(self._call(expr).args[0]) or ()) == len(_shape(expr)):
            expr = self._call(expr).args[0]
        return expr

    def _by_elements(self, call: relax.Expr) -> RowWrite | None:
        """``scatter_elements``, all of whose indices along the other dimensions are equal."""
        if not self._is(call, "scatter_elements") or str(call.attrs.reduction) != "update":
            return None
        past, indices, new = call.args
        shape, axis = _shape(call), int(call.attrs.axis) % len(_shape(call))
        rows = self._narrow(self._unwrapped(indices, shape[axis]))
        count = _shape(indices)[axis]
        wanted = tuple(count if at == axis else size for at, size in enumerate(shape))
        sequences = _sequences(_shape(rows), shape, axis, count)
        if _shape(new) != wanted or _shape(indices) != wanted or not sequences:
            return None
        return RowWrite(self._input(past), new, rows, sequences, axis)

    def _by_places(self, call: relax.Expr) -> RowWrite | None:
        """``scatter_nd`` of rows along the first dimension."""
        if not self._is(call, "scatter_nd") or str(call.attrs.reduction) != "update":
            return None
        past, indices, new = call.args
        if (_shape(indices) or ())[-1:] != (1,) or len(_shape(indices)) != 2:
            return None
        return RowWrite(self._input(past), new, self._unwrapped(indices, _shape(call)[0]), 1, 0)

    def _by_turned_places(self, call: relax.Expr) -> RowWrite | None:
        """``scatter_nd`` between two transpositions, of which the second undoes the first."""
        if not self._is(call, "permute_dims"):
            return None
        written = self._call(call.args[0])
        inner = self._by_places(written) or self._by_coordinates(written)
        before = self._call(inner.past) if inner is not None else None
        if before is None or not self._is(before, "permute_dims"):
            return None
        first, second = _order(before), _order(call)
        if [first[at] for at in second] != list(range(len(first))):
            return None
        new = relax.op.permute_dims(inner.new, second)
        axis = first[inner.axis]
        if inner.sequences > 1 and first[0]:
            return None
        return RowWrite(self._input(before.args[0]), new, inner.rows, inner.sequences, axis)

    def _by_coordinates(self, call: relax.Expr) -> RowWrite | None:
        """``scatter_nd`` at a grid of places: all coordinates but one are constants that count."""
        if not self._is(call, "scatter_nd") or str(call.attrs.reduction) != "update":
            return None
        past, indices, new = call.args
        shape, joined = _shape(call), self._call(self._unwrapped(indices, 0))
        if not self._is(joined, "concat") or not isinstance(joined.args[0], relax.Tuple):
            return None
        columns, (*grid, width) = list(joined.args[0].fields), _shape(joined)
        if int(joined.attrs.axis) % (len(grid) + 1) != len(grid) or not len(columns) == width == len(grid):
            return None
        data = [at for at, column in enumerate(columns) if not _counts(self._call(column), grid, at)]
        if len(data) != 1:
            return None
        (axis,) = data
        wanted = tuple(grid[axis] if at == axis else size for at, size in enumerate(shape))
        rows = self._call(columns[axis])
        if tuple(grid) != wanted[: len(grid)] or _shape(new) != wanted or not self._is(rows, "expand_dims", "reshape"):
            return None
        rows = rows.args[0]
        if _shape(rows) != tuple(grid):
            return None
        rows = self._call(rows).args[0] if self._is(rows, "broadcast_to") else rows
        sequences = _sequences(_aligned(_shape(rows), len(grid)), shape[: len(grid)], axis, grid[axis])
        return RowWrite(self._input(past), new, rows, sequences, axis) if sequences else None

    def _by_start(self, call: relax.Expr) -> RowWrite | None:
        """What the front end makes of ONNX's TensorScatter: the first row of each sequence, and those after it."""
        if not self._is(call, "where") or not self._is(call.args[1], "gather_elements"):
            return None
        inside, gathered, past = call.args
        new = self._call(gathered).args[0]
        shape, axis = _shape(call), int(self._call(gathered).attrs.axis) % len(_shape(call))
        if not self._is(inside, "logical_and") or not self._is(self._call(inside).args[0], "less"):
            return None
        place, count = self._call(self._call(inside).args[0]).args
        if not self._is(place, "reshape") or _number(count) != _shape(new)[axis]:
            return None
        place = self._call(self._call(place).args[0])
        circular = self._is(place, "floor_mod")
        place = self._call(place.args[0]) if circular else place
        if not self._is(place, "subtract") or not _is_range(self._call(place.args[0]), shape[axis]):
            return None
        start = self._call(place.args[1])
        rows = start.args[0] if self._is(start, "reshape") else place.args[1]
        return RowWrite(self._input(past), new, rows, shape[0], axis, first=True, circular=circular)

    def _unwrapped(self, indices: relax.Expr, size: int) -> relax.Expr:
        """Return indices without the choice that counts negative ones from the end, which the kernel makes itself."""
        if not self._is(indices, "where"):
            return indices
        negative, moved, plain = self._call(indices).args
        if self._is(negative, "less") and self._is(moved, "add"):
            compared, added = self._call(negative).args[0], self._call(moved).args
            if compared.same_as(plain) and added[0].same_as(plain):
                return plain
        return indices


def _shape(expr: relax.Expr) -> Shape | None:
    dims = getattr(getattr(expr, "ty", None), "shape", None)
    if not isinstance(dims, relax.ShapeExpr) or not all(isinstance(dim, tirx.IntImm) for dim in dims):
        return None
    return tuple(map(int, dims))


def _aligned(shape: Shape | None, rank: int) -> Shape | None:
    """Return a shape with as many dimensions as another one that it is broadcast to."""
    return None if shape is None or len(shape) > rank else (1,) * (rank - len(shape)) + tuple(shape)


def _sequences(rows: Shape | None, shape: Shape, axis: int, count: int) -> int | None:
    """Return how many lines of row numbers a tensor holds; None if they differ in another dimension."""
    if rows is None or len(rows) != len(shape) or rows[axis] != count:
        return None
    others = [(at, size) for at, size in enumerate(rows) if at != axis and size > 1]
    if not others:
        return 1
    return shape[0] if axis and others == [(0, shape[0])] else None


def _order(call: ir.Call) -> list[int]:
    axes = call.attrs.axes
    rank = len(call.args[0].ty.shape)
    return [int(each) % rank for each in axes] if axes is not None else list(reversed(range(rank)))


def _counts(expr: relax.Expr, grid: list[int], axis: int) -> bool:
    """Whether a tensor is a constant with the coordinate along one dimension of each place of a grid."""
    if not isinstance(expr, ir.GenericConst):
        return False
    return np.array_equal(expr.value.numpy(), np.indices(grid)[axis][..., None])


def _number(expr: relax.Expr) -> int | None:
    return int(expr.value.numpy()) if isinstance(expr, ir.GenericConst) and not expr.value.shape else None


def _is_range(expr: relax.Expr, size: int) -> bool:
    if not isinstance(expr, ir.GenericConst):
        return False
    return np.array_equal(expr.value.numpy().reshape(-1), np.arange(size))

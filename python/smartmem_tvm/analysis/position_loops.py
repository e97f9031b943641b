# SPDX-License-Identifier: Apache-2.0
"""How a loop reads along the positions of its operands: at the one that it writes, at a fixed one, or at all."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, sym, tirx

from .._tvm import mapped, simplified
from ..ir.index_map import is_if_then_else, variables
from ..ir.kernel import Stage, substitute
from ..ir.mask_positions import HIGHEST, LOWEST, ZERO
from .items import Mixed, Share

Shares = tuple[Share, ...]
"""Where the positions of a tensor lie: for each axis that has them the elements of one position along it."""


class Reading:
    """The loads of a stage at one length, and its values as a text without the length.

    Parameters
    ----------
    shares : mapping
        Tensor -> where its positions lie.
    least : int
        The shortest length.
    values : mapping
        Tensor that is a constant -> its numbers.

    Attributes
    ----------
    needs : list of tuple
        Tensor, axis, what it needs behind the length, and whether it is a factor of a product.
    own : list of tuple
        Tensor, axis, and axis of the result at whose position it is read.
    text : str
        What the stage computes, which is the same at each length.

    Raises
    ------
    Mixed
        If the stage does something else along the positions.
    """

    def __init__(self, stage: Stage, shares: Mapping, length: int, least: int, values: Mapping):
        self.stage, self.shares, self.length, self.least, self.values = stage, shares, length, least, values
        self.needs: list[tuple] = []
        self.own: list[tuple] = []
        if not isinstance(stage.body, tirx.BufferStore):
            raise Mixed("has a loop that writes several tensors")
        self.analyzer = sym.Analyzer()
        for var, extent in stage.extents.items():
            self.analyzer.bind(var, ir.Range(0, tirx.IntImm(var.ty.dtype, extent)))
        self.positions: dict = {}  # axis of the result -> variable of the position
        self.numbers: dict = {}  # axis of the result -> the number of positions along it
        self.inside = self._positions()
        self.reduced: dict = {}  # variable that stands for a load -> whether it runs over all positions
        self.loads: dict = {}
        self.where: list[str] = []
        self.along: list = []  # iterators of sums that run over all positions
        self.text = self._text()

    def _count(self, share: Share) -> int:
        """Return the positions of a tensor at this length."""
        return share.extent.of_one.of(self.length)

    def _positions(self) -> dict:
        store = self.stage.body
        inside = {}
        for share in self.shares[store.buffer]:
            var = store.indices[share.axis]
            if not any(var.same_as(each) for each in self.stage.spatial) or var in inside:
                raise Mixed("has no loop over the positions")
            position = tirx.Var(f"position{share.axis}", var.ty)
            self.analyzer.bind(position, ir.Range(0, tirx.IntImm(var.ty.dtype, self._count(share))))
            self.positions[share.axis] = position
            self.numbers[share.axis] = share.extent.of_one
            inside[var] = position
            if share.each > 1:
                rest = tirx.Var(f"rest{share.axis}", var.ty)
                self.analyzer.bind(rest, ir.Range(0, tirx.IntImm(var.ty.dtype, share.each)))
                inside[var] = position * tirx.const(share.each, var.ty.dtype) + rest
        return inside

    def _text(self) -> str:
        store = self.stage.body
        value = substitute(store.value, self.inside)
        shown = self._shown(value)
        if self.stage.reduction and any(self.reduced.values()):
            self._identity(shown)
        init = self.stage.init.value if self.stage.init is not None else None
        indices = [each for axis, each in enumerate(store.indices) if axis not in self.positions]
        return f"{indices} {shown} {init} {self.where}"

    def _shown(self, value):
        """Return a value with a variable for each load."""

        def stand_in(load):
            var = tirx.Var(f"load{len(self.loads)}", load.ty)
            own = load.source.same_as(self.stage.body.buffer)
            self.loads[var] = load
            self.reduced[var] = []
            if own:
                self.where.append("own")
                return var
            places = []
            for axis, index in enumerate(load.indices):
                index = self.analyzer.simplify(index)
                share = next((each for each in self.shares.get(load.source, ()) if each.axis == axis), None)
                places.append(str(index) if share is None else self._along(load.source, share, index, var))
            self.where.append(" ".join(map(str, places)))
            unknown.append(None in places)
            return var

        unknown: list[bool] = []
        shown = simplified(self.analyzer, mapped(value, (ir.TensorLoad, stand_in)))
        if any(unknown):  # an error in the callback would leave TVM's memory broken
            raise Mixed("reads other positions than the one that it writes, and does not add all of them up")
        return shown

    def _along(self, buffer, share: Share, index, var) -> str | None:
        """Return how an index runs along the positions of a tensor; None if that is not known."""
        each = tirx.const(share.each, index.ty.dtype)
        for axis, position in self.positions.items():
            rest = self.analyzer.simplify(index - position * each)
            if (
                self.numbers[axis] == share.extent.of_one
                and not self._has_position(rest)
                and self._within(rest, share.each)
            ):
                self.own.append((buffer, share.axis, axis))
                return f"position {axis} + {rest}"
        for iterator in self.stage.reduction:
            extent, count = self.stage.extents[iterator], self._count(share)
            step = each if extent == count else tirx.const(1, index.ty.dtype)
            rest = self.analyzer.simplify(index - iterator * step)
            whole = extent in (count, count * share.each) and self._within(rest, share.each)
            if whole and iterator not in variables(rest) and not self._has_position(rest):
                self.reduced[var].append((buffer, share.axis))
                self.along.append(iterator)
                return f"all {iterator.name} + {rest}"
        if not self._has_position(index) and self._is_early(index, share):
            return f"at {index}"
        return None

    def runs_along(self, iterator) -> bool:
        """Whether a load has an iterator of a sum as its position."""
        return any(iterator.same_as(each) for each in self.along)

    def _has_position(self, expr) -> bool:
        return any(each.same_as(var) for var in variables(expr) for each in self.positions.values())

    def _within(self, expr, count: int) -> bool:
        bound = self.analyzer.const_int_bound(expr)
        return bound.min_value >= 0 and bound.max_value < count

    def _is_early(self, index, share: Share) -> bool:
        """Whether an index is that of a position that each length has."""
        most = share.extent.of(self.least)
        if index in self.loads:
            values = self.values.get(self.loads[index].source)
            return values is not None and values.size > 0 and values.min() >= 0 and values.max() < most
        return not any(each in self.loads for each in variables(index)) and self._within(index, most)

    def _identity(self, value) -> None:
        """Note what a sum, or a maximum, needs behind the length."""
        own = next((var for var, load in self.loads.items() if load.source.same_as(self.stage.body.buffer)), None)
        if own is None or not isinstance(value, tirx.Add | tirx.Max | tirx.Min):
            raise Mixed("combines all positions in another way than by a sum or a maximum")
        term = value.b if own in variables(value.a) else value.a
        reads = {var: found for var, found in self.reduced.items() if found}
        if isinstance(value, tirx.Add):
            if not vanishes(term, reads):
                raise Mixed("adds up, over all positions, what is not zero where its operands are")
            factors = isinstance(term, tirx.Mul) and {term.a, term.b} == set(reads)
            self.needs += [(*each, ZERO, factors) for found in reads.values() for each in found]
            return
        if set(variables(term)) - reads.keys() or not isinstance(term, ir.Var):
            raise Mixed("takes the maximum, over all positions, of what it computes")
        fill = LOWEST if isinstance(value, tirx.Max) else HIGHEST
        self.needs += [(*each, fill, False) for found in reads.values() for each in found]


def vanishes(expr, zero: Mapping) -> bool:
    """Whether an expression is zero where these variables are."""
    if isinstance(expr, ir.Var):
        return expr in zero
    if isinstance(expr, tirx.Mul):
        return vanishes(expr.a, zero) or vanishes(expr.b, zero)
    if isinstance(expr, tirx.Add | tirx.Sub):
        return vanishes(expr.a, zero) and vanishes(expr.b, zero)
    if isinstance(expr, tirx.Cast):
        return vanishes(expr.value, zero)
    if isinstance(expr, tirx.Div):
        return vanishes(expr.a, zero)
    if isinstance(expr, tirx.Select):
        return vanishes(expr.true_value, zero) and vanishes(expr.false_value, zero)
    if is_if_then_else(expr):
        return vanishes(expr.args[1], zero) and vanishes(expr.args[2], zero)
    return isinstance(expr, tirx.IntImm | tirx.FloatImm) and not float(expr.value)

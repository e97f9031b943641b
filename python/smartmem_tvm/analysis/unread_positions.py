# SPDX-License-Identifier: Apache-2.0
"""Positions behind a length that have no reader: a kernel's tensors may hold anything there, or zeros.

    q[l, d] = ...;  s[l, k] = sum_d q[l, d] * k[k, d];  e[l, k] = exp((s[l, k] if k < n else -inf) - max_k ...)
    o[l, d] = sum_k e[l, k] * v[k, d]

If rows of ``o`` from ``n`` on have no reader, neither have those of ``q``, nor, as the mask hides them, those of ``k``.
Rows of ``v`` are multiplied by zero: zeros are as good as the numbers that the program computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm import ir, sym, tirx

from .._tvm import mapped
from ..ir.index_map import function_name, variables
from ..ir.kernel import Kernel, Stage, shape_of, substitute
from ..ir.mask_positions import LOWEST, ZERO, Extent
from .row_chain import summand

ANYTHING, ZEROS = "anything", "zeros"
"""What may be behind the length, instead of what the program computes."""
Axes = dict[int, tuple[str, Extent]]
"""Axis -> one of two words, and the elements before the length; none for an axis of which nothing is known."""


@dataclass(frozen=True, eq=False)
class UnreadPositions:
    """A kernel of a model at a capacity.

    Attributes
    ----------
    kernel : Kernel
    length : buffer or None
        The input with the length; None if the kernel has none.
    capacity : int
    numbers : sequence of Extent
        The numbers of positions that tensors have: other ones than the length where a window goes on by several.
    values : dict
        Tensor -> its axes that are ``zero`` or ``lowest`` behind the length: what `computed` finds.
    """

    kernel: Kernel
    length: object
    capacity: int
    numbers: Sequence[Extent] = (Extent(),)
    values: dict = field(default_factory=dict, init=False)

    def extents(self, size: int) -> list[Extent]:
        """Return what the elements before the length may be along an axis."""
        found = []
        for number in self.numbers:
            count = number.of(self.capacity)
            if count > 0 and size % count == 0:
                found.append(number._replace(each=size // count))
        return found

    def hides(self, condition, index, extent: Extent, analyzer) -> bool:
        """Whether a condition only holds where an index is before the length."""
        if isinstance(condition, tirx.And):
            return any(self.hides(part, index, extent, analyzer) for part in (condition.a, condition.b))
        if not isinstance(condition, tirx.LT | tirx.LE) or self.length is None:
            return False
        most = tirx.Var("length", str(self.length.dtype))
        bound = mapped(condition.b, (ir.TensorLoad, lambda load: most if load.source.same_as(self.length) else load))
        if most not in variables(bound):
            return False
        wanted = extent.of(most)
        wanted = tirx.Cast(condition.a.ty.dtype, wanted) if condition.a.ty.dtype != most.ty.dtype else wanted
        last = condition.a if isinstance(condition, tirx.LT) else condition.a - tirx.const(1, condition.a.ty.dtype)
        # Simplifiers move numbers from one side to the other: `w - 1 < n` is `w <= n`.
        return _is_zero(analyzer.simplify((bound - wanted) - (last - index)))

    def computed(self, inputs: Mapping) -> Axes:
        """Return the axes of the result that are ``zero`` or ``lowest`` behind the length, from those of the inputs."""
        self.values.update(inputs)
        for stage in self.kernel.stages:
            if isinstance(stage.body, tirx.BufferStore):
                self.values[stage.body.buffer] = self._computed(stage)
        return self.values.get(self.kernel.outputs[0], {})

    def _computed(self, stage: Stage) -> Axes:
        found = {}
        for axis, var in enumerate(stage.body.indices):
            if stage.reduction or not any(var.same_as(each) for each in stage.spatial):
                continue
            for extent in self.extents(stage.extents[var]):
                state = _Place(self, stage, var, extent).state(stage.body.value)
                if state and axis not in found:
                    found[axis] = state, extent
        return found

    def unread(self, result: Axes) -> dict:
        """Return, for each input, the axes along which it may hold `ANYTHING` or `ZEROS` behind the length.

        Call `computed` first.

        Parameters
        ----------
        result : Axes
            The same of the result.
        """
        known = {self.kernel.outputs[0]: result}
        for stage in reversed(self.kernel.stages):
            if not isinstance(stage.body, tirx.BufferStore):
                return {}
        for stage in reversed(self.kernel.stages[:-1]):
            found = self._unread(stage.body.buffer, known)  # no loop writes zeros into what a kernel keeps for itself
            known[stage.body.buffer] = {axis: each for axis, each in found.items() if each[0] == ANYTHING}
        known |= {buffer: self._unread(buffer, known) for buffer in self.kernel.inputs}
        return {buffer: known[buffer] for buffer in self.kernel.inputs}

    def _unread(self, buffer, known: Mapping) -> Axes:
        found = {}
        for axis, size in enumerate(shape_of(buffer)):
            for extent in self.extents(size):
                words = [
                    word
                    for stage in self.kernel.stages
                    if stage.reads(buffer)
                    for word in self._reads(stage, buffer, axis, extent, known.get(stage.body.buffer, {}))
                ]
                if words and None not in words and axis not in found:
                    found[axis] = ZEROS if ZEROS in words else ANYTHING, extent
        return found

    def _reads(self, stage: Stage, buffer, axis: int, extent: Extent, result: Axes) -> list[str | None]:
        """Return, for each load of a tensor, what may be behind the length along an axis; None if it is read."""
        reading = _Stage(self, stage, result, extent.of_one)
        return [reading.word(*each, axis, extent) for each in guarded_loads(stage.body.value, buffer)]


class _Stage:
    """The loads of a stage, whose result is unread along some axes; those with one number of positions are seen."""

    def __init__(self, whole: UnreadPositions, stage: Stage, result: Axes, number: Extent):
        self.whole, self.stage = whole, stage
        self.analyzer = sym.Analyzer()
        for var, extent in stage.extents.items():
            self.analyzer.bind(var, ir.Range(0, tirx.IntImm(var.ty.dtype, extent)))
        self.places = []
        for axis, (_, extent) in result.items():
            var = stage.body.indices[axis]
            if extent.of_one == number and any(var.same_as(each) for each in stage.spatial):
                each = extent.each
                position, inside = tirx.Var("position", var.ty), tirx.Var("rest", var.ty)
                self.analyzer.bind(position, ir.Range(0, tirx.IntImm(var.ty.dtype, number.of(whole.capacity))))
                self.analyzer.bind(inside, ir.Range(0, tirx.IntImm(var.ty.dtype, each)))
                self.places.append((var, position, position * tirx.const(each, var.ty.dtype) + inside))

    def word(self, load, conditions: list, as_index: bool, axis: int, extent: Extent) -> str | None:
        if as_index:
            return None  # anything might be the number of a row that a table has not
        index, each = load.indices[axis], extent.each
        if any(self.whole.hides(condition, index, extent, self.analyzer) for condition in conditions):
            return ANYTHING
        for var, position, value in self.places:
            at = self.analyzer.simplify(substitute(index, {var: value}) - position * tirx.const(each, index.ty.dtype))
            bound = self.analyzer.const_int_bound(at)
            if position not in variables(at) and bound.min_value >= 0 and bound.max_value < each:
                return ANYTHING
        bound = self.analyzer.const_int_bound(index)
        if not any(isinstance(each, ir.TensorLoad) for each in variables(index)) and _is_first(index, bound, each):
            return ANYTHING
        return self._summed(load, index, extent)

    def _summed(self, load, index, extent: Extent) -> str | None:
        """Return `ZEROS` if a load is a part of a sum whose terms are zero behind the length."""
        key = next((var for var in self.stage.reduction if var.same_as(index)), None)
        term = summand(self.stage) if key is not None else None
        if term is None or self.stage.extents[key] != extent.of(self.whole.capacity):
            return None
        place = _Place(self.whole, self.stage, key, extent)
        with_zeros = _Place(self.whole, self.stage, key, extent, load.source)
        return ZEROS if place.state(term) == with_zeros.state(term) == ZERO else None


def _is_first(index, bound, each: int) -> bool:
    return bound.min_value >= 0 and bound.max_value < each and not variables(index)


@dataclass(frozen=True, eq=False)
class _Place:
    """The values of a stage where an iterator is behind the length.

    Attributes
    ----------
    zeros : buffer or None
        An input that holds zeros there, whatever it is computed to hold.
    """

    whole: UnreadPositions
    stage: Stage
    key: tirx.Var
    extent: Extent
    zeros: object = None

    def state(self, expr) -> str | None:
        """Return ``zero``, ``lowest``, or None if nothing is known."""
        if isinstance(expr, tirx.FloatImm | tirx.IntImm):
            value = float(expr.value)
            return ZERO if value == 0 else LOWEST if value == float("-inf") else None
        if isinstance(expr, tirx.Select):
            if self.whole.hides(expr.condition, self.key, self.extent, sym.Analyzer()):
                return self.state(expr.false_value)
            first, second = self.state(expr.true_value), self.state(expr.false_value)
            return first if first == second else None
        if isinstance(expr, ir.TensorLoad):
            return self._loaded(expr)
        if isinstance(expr, tirx.Cast):
            return self.state(expr.value)
        if isinstance(expr, tirx.Mul):
            return ZERO if ZERO in (self.state(expr.a), self.state(expr.b)) else None
        if isinstance(expr, tirx.Div):
            return ZERO if self.state(expr.a) == ZERO else None
        if isinstance(expr, tirx.Sub | tirx.Add) and self.state(expr.a) == LOWEST and not self._varies(expr.b):
            return LOWEST
        if isinstance(expr, ir.Call) and function_name(expr) == "exp" and self.state(expr.args[0]) == LOWEST:
            return ZERO  # the polynomial of `vectorize-math` has 1e-38 there
        return None

    def _varies(self, expr) -> bool:
        return any(self.key.same_as(var) for var in variables(expr))

    def _loaded(self, load) -> str | None:
        for axis, index in enumerate(load.indices):
            if index.same_as(self.key):
                if self.zeros is not None and load.source.same_as(self.zeros):
                    return ZERO
                state, extent = self.whole.values.get(load.source, {}).get(axis, (None, None))
                return state if extent == self.extent else None
        return None


def state_behind(whole: UnreadPositions, stage: Stage, key, extent: Extent, expr) -> str | None:
    """Return what an expression of a stage is where an iterator is behind the length: `ZERO`, `LOWEST`, or None."""
    return _Place(whole, stage, key, extent).state(expr)


def _is_zero(expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


def guarded_loads(expr, buffer, conditions: tuple = (), as_index: bool = False) -> list[tuple]:
    """Return the loads of a tensor in an expression.

    Returns
    -------
    list of tuple
        Each load with the conditions of the selects that choose it, and whether it is, or makes, an index.
    """
    if isinstance(expr, tirx.Select):
        chosen = guarded_loads(expr.true_value, buffer, (*conditions, expr.condition), as_index)
        others = (guarded_loads(part, buffer, conditions, as_index) for part in (expr.condition, expr.false_value))
        return [*chosen, *(each for found in others for each in found)]
    is_load = isinstance(expr, ir.TensorLoad)
    found = [(expr, list(conditions), as_index)] if is_load and expr.source.same_as(buffer) else []
    for part in _parts(expr):
        found += guarded_loads(part, buffer, conditions, as_index or is_load)
    return found


def _parts(expr) -> list:
    if isinstance(expr, ir.TensorLoad):
        return list(expr.indices)
    if isinstance(expr, ir.Call):
        return [each for each in expr.args if isinstance(each, ir.Expr)]
    if hasattr(expr, "a") and hasattr(expr, "b"):
        return [expr.a, expr.b]
    return [expr.value] if isinstance(expr, tirx.Cast) else [expr.a] if isinstance(expr, tirx.Not) else []

# SPDX-License-Identifier: Apache-2.0
"""Positions of an open length: what of a model at a capacity is that of a shorter length, and what has to be masked.

A model at capacity ``c`` computes ``n`` positions if each tensor, cut to its first ``n`` positions, is that of a model
made for ``n``. What lies behind may be anything. `length_work` looks at the loops of each operator at two lengths. An
index along the positions of a tensor is one of

- the position that is written: nothing to do,
- a fixed one below the least length: nothing to do,
- an iterator of a sum, or of a maximum, over all positions: the operand needs the identity behind ``n`` (`Need`),

and anything else is refused. Everything besides has to be the same at both lengths: operators, attributes, values, and
constants up to the positions that both have. Of softmax, means and windows the operator is known by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import ir, relax

from .._tvm import mapped
from ..ir.graph import CALL_TIR
from ..ir.kernel import Kernel, Opaque, Stage, parse, shape_of
from ..ir.mask_positions import LOWEST, ZERO
from ..ir.public_functions import MAIN
from .items import LOOPS, Mixed, Share, bindings_of, operator_of
from .position_loops import Reading, Shares


@dataclass(frozen=True)
class Need:
    """What an operator needs of an operand behind the length.

    Attributes
    ----------
    operand : int
        Place in `operands` of the operator.
    axis : int
    fill : str
        `ZERO`, `LOWEST` or `HIGHEST`.
    factor : bool
        The operand is a factor of a product with another operand that is zero there: finite numbers are enough.
    """

    operand: int
    axis: int
    fill: str
    factor: bool = False


@dataclass
class OperatorWork:
    """What one operator does along the positions.

    Attributes
    ----------
    name : str
    shares : Shares or list
        Of its result; a list for a tuple.
    needs : list of Need
    kept : dict
        (operand, axis) -> axis of the result at whose position it is read, and nowhere else.
    scaled : int
        The times that the result is a mean over positions: it lacks the factor of capacity to length.
    zero : set of int
        Axes along which the result is zero behind the length, if the needs are met.
    """

    name: str
    shares: Shares | list = ()
    needs: list[Need] = field(default_factory=list)
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    scaled: int = 0
    zero: set[int] = field(default_factory=set)


@dataclass
class LengthWork:
    """The facts about a model whose first positions do not depend on its length.

    Attributes
    ----------
    inputs, outputs : list of Shares
    operators : list of OperatorWork
        Of each binding, in order.
    """

    inputs: list[Shares]
    outputs: list[Shares]
    operators: list[OperatorWork]


def length_work(small: tvm.IRModule, large: tvm.IRModule, lengths: tuple[int, int], least: int) -> LengthWork:
    """Prove that a model's first positions do not depend on its length, once the needs of its operators are met.

    Parameters
    ----------
    small, large : tvm.IRModule
        One model before ``LegalizeOps`` at two lengths, with the same operators (`items.require_same_graph`).
    lengths : tuple of int
    least : int
        The shortest length.

    Raises
    ------
    Mixed
        If an operator does something else along the positions, or has no loops that can be read.
    """
    known: dict = {}
    for before, var in zip(small[MAIN].params, large[MAIN].params, strict=True):
        known[var] = _shares_of_type(before.ty, var.ty, lengths, f"input '{var.name}'")
    found = []
    for before, binding in zip(bindings_of(small), bindings_of(large)):
        name = operator_of(binding.value)
        try:
            work = _Operator(small, large, before, binding, lengths, least).work()
        except (Mixed, Opaque) as reason:
            raise Mixed(f"operator '{name}' ('{binding.var.name}') {reason}") from None
        known[binding.var] = work.shares
        found.append(work)
    result = large[MAIN].body.body
    outputs = [known[each] for each in (result.fields if isinstance(result, ir.Tuple) else [result])]
    outputs = outputs[0] if len(outputs) == 1 and isinstance(outputs[0], list) else outputs
    return LengthWork([known[var] for var in large[MAIN].params], outputs, found)


def shares_of(small: Sequence[int], large: Sequence[int], lengths: tuple[int, int], what: str) -> Shares:
    """Return where the positions of a tensor lie, from its shapes at two lengths.

    Raises
    ------
    Mixed
        If a dimension is no multiple of the lengths.
    """
    if len(small) != len(large):
        raise Mixed(f"{what} has another number of dimensions for another length".strip())
    found = []
    for axis, (a, b) in enumerate(zip(small, large)):
        if a == b:
            continue
        each, rest = divmod(a, lengths[0])
        if rest or each * lengths[1] != b:
            raise Mixed(f"{what} has a dimension that is no multiple of the length".strip())
        found.append(Share(axis, each))
    return tuple(found)


def operands(value) -> list:
    """Return the variables and constants that a value reads, in the order of its arguments."""
    if isinstance(value, ir.Var) or _is_array(value):
        return [value]
    if isinstance(value, ir.Tuple):
        return [each for part in value.fields for each in operands(part)]
    if isinstance(value, ir.TupleGetItem):
        return [value.tuple_value]
    if isinstance(value, ir.Call):
        args = value.args[1:2] if value.op == CALL_TIR else value.args
        return [each for part in args for each in operands(part)]
    return []


def _is_array(value) -> bool:
    return isinstance(value, ir.Constant) and hasattr(value.value, "numpy")


def _shape(ty) -> tuple[int, ...]:
    return tuple(map(int, ty.shape)) if getattr(ty, "shape", None) else ()


def _shares_of_type(before, ty, lengths, what: str):
    if isinstance(ty, relax.TupleType):
        return [_shares_of_type(*pair, lengths, what) for pair in zip(before.fields, ty.fields, strict=True)]
    return shares_of(_shape(before), _shape(ty), lengths, what)


class _Operator:
    """One operator at two lengths."""

    def __init__(self, small, large, before, binding, lengths: tuple[int, int], least: int):
        self.modules, self.values = (small, large), (before.value, binding.value)
        self.vars, self.lengths, self.least = (before.var, binding.var), lengths, least
        self.operands = operands(before.value), operands(binding.value)
        pairs = list(zip(*self.operands, strict=True))
        self.shares = [_shares_of_type(a.ty, b.ty, lengths, "it reads a tensor that") for a, b in pairs]
        result = _shares_of_type(before.var.ty, binding.var.ty, lengths, "")
        self.found = OperatorWork(operator_of(binding.value), result)

    def work(self) -> OperatorWork:
        if not isinstance(self.values[1], ir.Call) or not any(map(_any, [*self.shares, self.found.shares])):
            return self.found
        known = _BY_NAME.get(self.found.name)
        if known is None or not known(self):
            self._loops()
        return self.found

    def need(self, axes: Sequence[int], fill: str) -> None:
        """Note that the first operand needs a number behind the length along those of the axes with positions."""
        self.found.needs += [Need(0, each.axis, fill) for each in self.shares[0] if each.axis in axes]

    def keep(self, axes: Sequence[int]) -> None:
        """Note that the first operand is read at the position that is written along these axes."""
        self.found.kept |= {(0, axis): axis for axis in axes}

    def along(self, axes: Sequence[int]) -> list[int]:
        """Return those of the axes along which the first operand has positions."""
        rank = len(_shape(self.operands[1][0].ty))
        return [each.axis for each in self.shares[0] if each.axis in {axis % rank for axis in axes}]

    def _loops(self) -> None:
        (small, first), (large, second) = (self._kernels(number) for number in (0, 1))
        if len(first) != len(second) or len(small) != len(large):
            raise Mixed("has other loops for another length")
        known = {var: (self.shares[place], place) for place, var in enumerate(large)}
        for number, ((_, before, one), (var, args, other)) in enumerate(zip(first, second), 1):
            self._kernel((one, other), (before, args), known, number == len(second))
            shapes = [shape_of(each.outputs[0]) for each in (one, other)]
            known[var] = shares_of(*shapes, self.lengths, "a part of it"), None

    def _kernels(self, number: int) -> tuple[list, list]:
        """Return the parameters of the operator's program, and of each kernel of it variable, arguments and loops."""
        value, ty = self.values[number], self.vars[number].ty
        params = [relax.Var(f"p{place}", each.ty) for place, each in enumerate(self.operands[number])]
        given: dict = {}
        for each, share, param in zip(self.operands[number], self.shares, params):
            if isinstance(each, ir.Var) or _any(share):  # other constants stay: they may be settings
                given.setdefault(each, param)
        body = mapped(value, *((kind, lambda each: given.get(each, each)) for kind in (ir.Var, ir.Constant)))
        out = relax.Var("out", ty)
        block = relax.DataflowBlock([relax.VarBinding(out, body)])
        own = tvm.IRModule({MAIN: relax.Function(params, relax.SeqExpr([block], out), ty)})
        if value.op == CALL_TIR:
            own[value.args[0]] = self.modules[number][value.args[0]]
        own = LOOPS(own)
        found = []
        for binding in bindings_of(own):
            call = binding.value
            if not isinstance(call, ir.Call) or call.op != CALL_TIR:
                raise Mixed("has no loops that can be read")
            kernel = parse(own[call.args[0]])
            if len(kernel.outputs) != 1:
                raise Mixed("writes several tensors")
            found.append((binding.var, list(call.args[1].fields), kernel))
        return list(own[MAIN].params), found

    def _kernel(self, kernels: tuple[Kernel, Kernel], args: tuple, known: Mapping, last: bool) -> None:
        """Check the loops of a kernel of the operator."""
        small, large = kernels
        if len(small.stages) != len(large.stages):
            raise Mixed("has other loops for another length")
        shares: tuple[dict, dict] = {}, {}
        values: tuple[dict, dict] = {}, {}
        places: dict = {}
        for before, buffer, one, other in zip(small.inputs, large.inputs, *args, strict=True):
            if _is_array(other):
                place, pair = None, (one, other)
                found = shares_of(_shape(one.ty), _shape(other.ty), self.lengths, "")
            else:
                found, place = known[other]
                pair = tuple(each[place] for each in self.operands) if place is not None else (None, None)
            places[buffer], shares[0][before], shares[1][buffer] = place, found, found
            for each, array, held in zip((before, buffer), pair, values, strict=True):
                if _is_array(array):
                    held[each] = array.value.numpy()
        for before, stage in zip(small.stages, large.stages):
            for one, other in zip(before.outputs, stage.outputs, strict=True):
                shares[0][one] = shares[1][other] = shares_of(shape_of(one), shape_of(other), self.lengths, "")
            readings = [
                Reading(each, shares[number], self.lengths[number], self.least, values[number])
                for number, each in enumerate((before, stage))
            ]
            if readings[0].text != readings[1].text or not self._alike(before, stage):
                raise Mixed("computes something else for another length")
            growing = [
                other.var
                for one, other in zip(before.iters, stage.iters)
                if int(one.dom.extent) != int(other.dom.extent)
            ]
            if any(var in growing and not readings[1].runs_along(var) for var in stage.reduction):
                raise Mixed("adds up something for each position besides what it reads there")
            self._note(readings[1], places, last and any(stage.body.buffer.same_as(b) for b in large.outputs))

    def _alike(self, before: Stage, stage: Stage) -> bool:
        pairs = zip(before.iters, stage.iters)
        return len(before.iters) == len(stage.iters) and all(
            (a := int(one.dom.extent)) == (b := int(other.dom.extent)) or a * self.lengths[1] == b * self.lengths[0]
            for one, other in pairs
        )

    def _note(self, reading: Reading, places: Mapping[object, int | None], last: bool) -> None:
        for buffer, axis, fill, factor in reading.needs:
            place = places.get(buffer)
            if place is None:
                raise Mixed("adds up, over all positions, what it computes itself")
            self.found.needs.append(Need(place, axis, fill, factor))
        for buffer, axis, at in reading.own:
            place = places.get(buffer)
            if place is not None and last:
                self.found.kept[place, axis] = at


def _any(shares) -> bool:
    return any(map(_any, shares)) if isinstance(shares, list) else bool(shares)


def _softmax(operator: _Operator) -> bool:
    axes = operator.along([int(operator.values[1].attrs.axis)])
    if axes:
        operator.need(axes, LOWEST)
        operator.keep([each.axis for each in operator.shares[0] if each.axis not in axes])
        operator.found.zero |= set(axes) if operator.found.name == "nn.softmax" else set()
    return bool(axes)


def _mean(operator: _Operator) -> bool:
    attrs = operator.values[1].attrs
    rank = len(_shape(operator.operands[1][0].ty))
    axes = operator.along(range(rank) if attrs.axis is None else list(map(int, attrs.axis)))
    operator.need(axes, ZERO)
    operator.found.scaled = len(axes)
    return bool(axes)


def _window(operator: _Operator) -> bool:
    """A convolution, or a maximum over windows: reads behind the length find what is in the padding."""
    attrs = operator.values[1].attrs
    layout = str(attrs.layout if operator.found.name.startswith("nn.max") else attrs.data_layout)
    axes, sides = [each.axis for each in operator.shares[0]], [each for each in layout if each in "DHW"]
    for axis in axes:
        if layout[axis] not in sides or any(map(_any, operator.shares[1:])):
            raise Mixed("is a window along something else than the positions")
        if int(attrs.strides[sides.index(layout[axis])]) != 1:
            raise Mixed("is a window that goes on by more than one position")
    operator.need(axes, LOWEST if operator.found.name.startswith("nn.max") else ZERO)
    return bool(axes)


def _running_sum(operator: _Operator) -> bool:
    operator.keep([each.axis for each in operator.shares[0]])
    return True


_BY_NAME = {
    "nn.softmax": _softmax,
    "nn.log_softmax": _softmax,
    "mean": _mean,
    "nn.conv1d": _window,
    "nn.conv2d": _window,
    "nn.conv3d": _window,
    "nn.max_pool1d": _window,
    "nn.max_pool2d": _window,
    "cumsum": _running_sum,
}
"""Operators whose loops say less than their name: name -> what notes their needs, and whether there are any."""


def same_prefix(one: np.ndarray, other: np.ndarray, shares: Shares, lengths: tuple[int, int]) -> bool:
    """Whether a constant at one length is the beginning of the constant at another one."""
    shortest = min(lengths)
    for share in shares:
        one, other = (each.take(range(shortest * share.each), share.axis) for each in (one, other))
    return one.shape == other.shape and np.array_equal(one, other, one.dtype.kind == "f")

# SPDX-License-Identifier: Apache-2.0
"""Positions of an open length: what of a model at a capacity is that of a shorter length, and what has to be masked.

A model at capacity ``c`` computes ``n`` positions if each tensor, cut to its first ``n`` positions, is that of a model
made for ``n``. What lies behind may be anything. `length_work` looks at the loops of each operator at two lengths. An
index along the positions of a tensor is one of

- the position that is written: nothing to do,
- a fixed one below the least length: nothing to do,
- an iterator of a sum, or of a maximum, over all positions: the operand needs the identity behind ``n`` (`Need`),

and anything else is refused. Everything besides has to be the same at both lengths: operators, attributes, values, and
constants up to the positions that both have. Of softmax, means and windows the operator is known by its name. A window
with a stride makes another number of positions of them (`position_windows`): each tensor has a number of its own, and
those of the tensors that an operator reads and writes position by position must be the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import ir, relax

from .._tvm import mapped
from ..ir.graph import CALL_TIR
from ..ir.kernel import Kernel, Opaque, Stage, parse, shape_of
from ..ir.mask_positions import LOWEST, RECURRENT, ZERO, Counted, Extent
from ..ir.public_functions import MAIN
from .items import LOOPS, Mixed, Share, bindings_of, operator_of
from .position_constants import counted_of
from .position_loops import Reading, Shares
from .position_slices import Sliced, cut_of, last_of, sliced
from .position_windows import CONVOLUTIONS, MAXIMA, MEANS, Window, padding_along, window_along

Numbers = Sequence[Extent]
"""Numbers of positions that a tensor may have."""
_PLAIN = (Extent(),)


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
    reads : list
        Shares of each operand.
    scaled : list of Share
        Of those axes of the first operand over which the result is a mean: it lacks the factor of capacity to length.
    zero : set of int
        Axes along which the result is zero behind the length, if the needs are met.
    counted : dict
        Operand that is a constant of one number -> how that follows from the length.
    last : dict
        Of a slice: axis along which it reads the last positions -> their extent, and how many elements it reads.
    """

    name: str
    shares: Shares | list = ()
    needs: list[Need] = field(default_factory=list)
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    reads: list = field(default_factory=list)
    scaled: list[Share] = field(default_factory=list)
    zero: set[int] = field(default_factory=set)
    counted: dict[int, Counted] = field(default_factory=dict)
    last: dict[int, tuple[Extent, int]] = field(default_factory=dict)


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

    @property
    def numbers(self) -> list[Extent]:
        """The numbers of positions that tensors have."""
        return _distinct([Extent(), *_numbers_of([each.shares for each in self.operators])])

    def fits(self, mod: tvm.IRModule, length: int) -> bool:
        """Whether each result of the model at a length has the positions that are known of it."""
        bindings = list(bindings_of(mod))
        pairs = zip(bindings, self.operators, strict=True)
        return all(_has_sizes(each.var.ty, found.shares, length) for each, found in pairs)


def _has_sizes(ty, shares, length: int) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(_has_sizes(*pair, length) for pair in zip(ty.fields, shares, strict=True))
    return all(_shape(ty)[share.axis] == share.extent.of(length) for share in shares)


def _numbers_of(shares) -> list[Extent]:
    if isinstance(shares, list):
        return [number for each in shares for number in _numbers_of(each)]
    return [share.extent.of_one for share in shares]


def _distinct(numbers: Numbers) -> list[Extent]:
    return list(dict.fromkeys(numbers))


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
        known[var] = _shares_of_type(before.ty, var.ty, lengths, f"input '{var.name}'", [Extent()])
    found, numbers = [], [Extent()]
    for before, binding in zip(bindings_of(small), bindings_of(large)):
        name = operator_of(binding.value)
        try:
            work = _Operator(small, large, before, binding, lengths, least, known, numbers).work()
        except (Mixed, Opaque) as reason:
            raise Mixed(f"operator '{name}' ('{binding.var.name}') {reason}") from None
        known[binding.var] = work.shares
        numbers = _distinct([*numbers, *_numbers_of(work.shares)])
        found.append(work)
    result = large[MAIN].body.body
    outputs = [known[each] for each in (result.fields if isinstance(result, ir.Tuple) else [result])]
    outputs = outputs[0] if len(outputs) == 1 and isinstance(outputs[0], list) else outputs
    return LengthWork([known[var] for var in large[MAIN].params], outputs, found)


def shares_of(
    small: Sequence[int], large: Sequence[int], lengths: tuple[int, int], what: str, numbers: Numbers = _PLAIN
) -> Shares:
    """Return where the positions of a tensor lie, from its shapes at two lengths.

    Parameters
    ----------
    numbers : sequence of Extent
        Numbers of positions that it may have: the first one that fits is taken.

    Raises
    ------
    Mixed
        If a dimension is no multiple of the numbers.
    """
    if len(small) != len(large):
        raise Mixed(f"{what} has another number of dimensions for another length".strip())
    found = []
    for axis, (a, b) in enumerate(zip(small, large)):
        if a == b:
            continue
        extent = extent_of(a, b, lengths, numbers)
        if extent is None:
            raise Mixed(f"{what} has a dimension that is no multiple of the length".strip())
        found.append(Share(axis, *extent))
    return tuple(found)


def extent_of(small: int, large: int, lengths: tuple[int, int], numbers: Numbers) -> Extent | None:
    """Return what gives both sizes at the two lengths: a multiple of one of the numbers; None if there is none."""
    for number in numbers:
        counts = [number.of(length) for length in lengths]
        if counts[0] > 0 and not small % counts[0] and small // counts[0] * counts[1] == large:
            return number._replace(each=small // counts[0])
    return None


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


def _shares_of_type(before, ty, lengths, what: str, numbers: Numbers):
    if isinstance(ty, relax.TupleType):
        return [_shares_of_type(*pair, lengths, what, numbers) for pair in zip(before.fields, ty.fields, strict=True)]
    return shares_of(_shape(before), _shape(ty), lengths, what, numbers)


class _Operator:
    """One operator at two lengths."""

    def __init__(self, small, large, before, binding, lengths, least: int, known: Mapping, numbers: Numbers):
        self.modules, self.values = (small, large), (before.value, binding.value)
        self.vars, self.lengths, self.least = (before.var, binding.var), lengths, least
        self.operands = operands(before.value), operands(binding.value)
        own = [number for each in self.operands[1] for number in _numbers_of(known.get(each, ()))]
        self.numbers = _distinct(own) or numbers  # those that it reads; of what it reads none, any of the model
        self.shares = [
            known[b]
            if b in known
            else _shares_of_type(a.ty, b.ty, lengths, "it reads a tensor that", _distinct([*self.numbers, *numbers]))
            for a, b in zip(*self.operands, strict=True)
        ]
        self.found = OperatorWork(operator_of(binding.value), reads=self.shares)
        for place, pair in enumerate(zip(*self.operands, strict=True)):
            arrays = [each.value.numpy() for each in pair if _is_array(each)]
            if len(arrays) == 2 and not pair[0].value.same_as(pair[1].value) and not same_prefix(*arrays):
                counts = _distinct([*self.numbers, *numbers])
                calls = isinstance(self.values[1], ir.Call)
                self.found.counted[place] = (calls and counted_of(*arrays, lengths, counts)) or _refuse_constant()

    def work(self) -> OperatorWork:
        if _steps_of(self.modules[1], self.values[1]) is not None:
            return self._recurrent()
        if isinstance(self.values[1], ir.Call) and self.shares and _any(self.shares[0]):
            window = _SHARED.get(self.found.name)
            if window is not None:
                self.found.shares = window(self)
                return self.found
        cut = _cut(self) if self.found.name == "strided_slice" else None
        if cut is not None:
            self.found.shares = cut
            return self.found
        self.found.shares = _shares_of_type(*(each.ty for each in self.vars), self.lengths, "", self.numbers)
        if not isinstance(self.values[1], ir.Call) or not any(map(_any, [*self.shares, self.found.shares])):
            return self.found
        known = _BY_NAME.get(self.found.name)
        if known is None or not known(self):
            self._loops()
        return self.found

    def _recurrent(self) -> OperatorWork:
        """Return the work of a loop over steps that ends at the number of steps of its sequences."""
        steps, ends = _steps_of(self.modules[1], self.values[1])
        shares = self.shares[steps]
        if any(_any(each) for place, each in enumerate(self.shares) if place != steps):
            raise Mixed("is a recurrent layer whose weights or states have positions")
        self.found.shares = _shares_of_type(*(each.ty for each in self.vars), self.lengths, "", self.numbers)
        if shares and not (
            [each.axis for each in shares] == [0] and self.found.counted.get(ends) == Counted(shares[0].extent)
        ):
            raise Mixed("is a recurrent layer over something else than the positions")
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
            known[var] = shares_of(*shapes, self.lengths, "a part of it", self.numbers), None

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
                found = shares_of(_shape(one.ty), _shape(other.ty), self.lengths, "", self.numbers)
            else:
                found, place = known[other]
                pair = tuple(each[place] for each in self.operands) if place is not None else (None, None)
            places[buffer], shares[0][before], shares[1][buffer] = place, found, found
            for each, array, held in zip((before, buffer), pair, values, strict=True):
                if _is_array(array):
                    held[each] = array.value.numpy()
        for before, stage in zip(small.stages, large.stages):
            for one, other in zip(before.outputs, stage.outputs, strict=True):
                found = shares_of(shape_of(one), shape_of(other), self.lengths, "", self.numbers)
                if other in large.outputs and last:
                    found = self.found.shares
                shares[0][one] = shares[1][other] = found
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
            (a := int(one.dom.extent)) == (b := int(other.dom.extent))
            or extent_of(a, b, self.lengths, self.numbers) is not None
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


def _last(operator: _Operator) -> bool:
    """A slice of the last positions."""
    operator.found.last = last_of(_sliced(operator), operator.least)
    if operator.found.last:
        operator.keep([each.axis for each in operator.shares[0] if each.axis not in operator.found.last])
    return bool(operator.found.last)


def _cut(operator: _Operator) -> Shares | None:
    """Return where the positions of a slice lie that leaves out the same number of them at both lengths; else None."""
    windows = cut_of(_sliced(operator))
    return _slid(operator, lambda axis: windows.get(axis, Window(1, 1, 1, 0, 0)), ZERO) if windows else None


def _sliced(operator: _Operator) -> list[Sliced]:
    if not (operator.shares and operator.shares[0]):
        return []
    shapes = [_shape(each[0].ty) for each in operator.operands]
    return sliced(operator.values, operator.shares[0], shapes, [_shape(each.ty) for each in operator.vars])


def _mean(operator: _Operator) -> bool:
    attrs = operator.values[1].attrs
    rank = len(_shape(operator.operands[1][0].ty))
    axes = operator.along(range(rank) if attrs.axis is None else list(map(int, attrs.axis)))
    operator.need(axes, ZERO)
    operator.found.scaled = [each for each in operator.shares[0] if each.axis in axes]
    return bool(axes)


def _window(operator: _Operator) -> Shares:
    """A convolution, or a pool: reads behind the length find what is in the padding."""
    name, attrs = operator.found.name, operator.values[1].attrs
    if any(map(_any, operator.shares[1:])):
        raise Mixed("is a window whose weights have positions")
    sizes = _shape(operator.operands[1][1].ty) if name in CONVOLUTIONS else ()
    return _slid(operator, lambda axis: window_along(name, attrs, sizes, axis), LOWEST if name in MAXIMA else ZERO)


def _padding(operator: _Operator) -> Shares:
    """Zeros around the positions."""
    return _slid(operator, lambda axis: padding_along(operator.values[1].attrs, axis), ZERO)


def _slid(operator: _Operator, window_of: Callable, fill: str) -> Shares:
    found = []
    for share in operator.shares[0]:
        window = window_of(share.axis)
        if window is None:
            raise Mixed("is a window along something else than the positions")
        if window.reads_behind:
            operator.need([share.axis], fill)
        found.append(window.share(share, operator.least))
    for number, var in enumerate(operator.vars):
        if not _has_sizes(var.ty, found, operator.lengths[number]):
            raise Mixed("is a window with another number of results than its size says")
    return tuple(found)


def _split(operator: _Operator) -> list[Shares]:
    """Parts along an axis without positions."""
    rank = len(_shape(operator.operands[1][0].ty))
    if int(operator.values[1].attrs.axis) % rank in {each.axis for each in operator.shares[0]}:
        raise Mixed("splits the positions")
    return [operator.shares[0]] * len(operator.vars[1].ty.fields)


def _batch_norm(operator: _Operator) -> list[Shares]:
    """A norm by numbers of each channel that the model holds."""
    attrs = operator.values[1].attrs
    if any(map(_any, operator.shares[1:])) or getattr(attrs, "training", False):
        raise Mixed("is a norm over the positions")
    return [operator.shares[0], *(() for _ in operator.vars[1].ty.fields[1:])]


def _running_sum(operator: _Operator) -> bool:
    operator.keep([each.axis for each in operator.shares[0]])
    return True


_BY_NAME = {
    "nn.softmax": _softmax,
    "nn.log_softmax": _softmax,
    "mean": _mean,
    "cumsum": _running_sum,
    "strided_slice": _last,
}
"""Operators whose loops say less than their name: name -> what notes their needs, and whether there are any."""
WINDOWS = {**dict.fromkeys((*CONVOLUTIONS, *MAXIMA, *MEANS), _window), "nn.pad": _padding}
"""Operators that read neighbours: name -> what notes their needs, and returns where positions of the result lie."""
_SHARED = {**WINDOWS, "split": _split, "nn.batch_norm": _batch_norm}
"""The same, and operators that write several tensors."""


def _steps_of(mod: tvm.IRModule, value) -> list[int] | None:
    """Return what `RECURRENT` says of the kernel that a value calls; None if it calls none that has it."""
    if not isinstance(value, ir.Call) or value.op != CALL_TIR:
        return None
    attrs = mod[value.args[0]].attrs or {}
    return list(map(int, attrs[RECURRENT])) if RECURRENT in attrs else None


def _refuse_constant() -> Counted:
    raise Mixed("reads a constant that differs with the length, and not as its beginning, a multiple or a root does")


def same_prefix(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether a constant at one length is the beginning of the constant at another one."""
    if one.ndim != other.ndim:
        return False
    common = tuple(slice(min(pair)) for pair in zip(one.shape, other.shape))
    return np.array_equal(one[common], other[common], one.dtype.kind == "f")

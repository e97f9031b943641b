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
from math import prod

import tvm
import tvm_ffi
from tvm import ir, relax

from .._tvm import mapped
from ..ir.graph import CALL_TIR
from ..ir.kernel import Kernel, Opaque, Stage, parse, shape_of
from ..ir.mask_positions import LOWEST, RECURRENT, ZERO, Counted, Extent
from ..ir.public_functions import MAIN
from .items import LOOPS, Mixed, bindings_of, operator_of
from .position_constants import counted_of
from .position_loops import Reading, Shares
from .position_slices import Sliced, cut_of, last_of, sliced
from .position_windows import CONVOLUTIONS, MAXIMA, MEANS, Window, padding_along, window_along
from .position_work import (
    LengthWork,
    Need,
    Numbers,
    OperatorWork,
    array_shape,
    distinct,
    extent_of,
    has_sizes,
    is_array,
    numbers_of,
    operands,
    same_prefix,
    shares_of,
    shares_of_type,
)


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
    legal: dict[int, list] = {}
    for before, var in zip(small[MAIN].params, large[MAIN].params, strict=True):
        known[var] = shares_of_type(before.ty, var.ty, lengths, f"input '{var.name}'", [Extent()])
    found, numbers = [], [Extent()]
    for before, binding in zip(bindings_of(small), bindings_of(large)):
        name = operator_of(binding.value)
        try:
            work = _Operator(small, large, before, binding, lengths, least, known, numbers, legal).work()
        except (Mixed, Opaque) as reason:
            raise Mixed(f"operator '{name}' ('{binding.var.name}') {reason}") from None
        known[binding.var] = work.shares
        numbers = distinct([*numbers, *numbers_of(work.shares)])
        found.append(work)
    result = large[MAIN].body.body
    outputs = [known[each] for each in (result.fields if isinstance(result, ir.Tuple) else [result])]
    outputs = outputs[0] if len(outputs) == 1 and isinstance(outputs[0], list) else outputs
    return LengthWork([known[var] for var in large[MAIN].params], outputs, found)


# Numbers of a constant that may be a setting, as bounds of a slice are; larger ones are operands, so that operators
# that differ in their weights have one program. Chosen: no operator of Relax takes more dimensions.
_SETTINGS = 16


class _Operator:
    """One operator at two lengths."""

    def __init__(
        self, small, large, before, binding, lengths, least: int, known: Mapping, numbers: Numbers, legal: dict
    ):
        self.legal = legal
        self.modules, self.values = (small, large), (before.value, binding.value)
        self.vars, self.lengths, self.least = (before.var, binding.var), lengths, least
        self.operands = operands(before.value), operands(binding.value)
        own = [number for each in self.operands[1] for number in numbers_of(known.get(each, ()))]
        self.numbers = distinct(own) or numbers  # those that it reads; of what it reads none, any of the model
        self.shares = [
            known[b]
            if b in known
            else shares_of_type(a.ty, b.ty, lengths, "it reads a tensor that", distinct([*self.numbers, *numbers]))
            for a, b in zip(*self.operands, strict=True)
        ]
        self.found = OperatorWork(operator_of(binding.value), reads=self.shares, shapes=self.shapes)
        for place, pair in enumerate(zip(*self.operands, strict=True)):
            if not all(map(is_array, pair)) or pair[0].value.same_as(pair[1].value):
                continue
            arrays = [each.value.numpy() for each in pair]
            if not same_prefix(*arrays):
                counts = distinct([*self.numbers, *numbers])
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
        self.found.shares = shares_of_type(*(each.ty for each in self.vars), self.lengths, "", self.numbers)
        if not isinstance(self.values[1], ir.Call) or not any(map(_any, [*self.shares, self.found.shares])):
            return self.found
        self.found.loops = self._both_loops
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
        self.found.shares = shares_of_type(*(each.ty for each in self.vars), self.lengths, "", self.numbers)
        wanted = [Counted(each.extent.of_one, factor=each.extent.each) for each in shares or () if each.axis == 0]
        if shares and (len(shares) > 1 or [self.found.counted.get(ends)] != wanted):
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
        rank = len(array_shape(self.operands[1][0].ty))
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
            if isinstance(each, ir.Var) or _any(share) or prod(array_shape(each.ty)) > _SETTINGS:
                given.setdefault(each, param)
        body = mapped(value, *((kind, lambda each: given.get(each, each)) for kind in (ir.Var, ir.Constant)))
        out = relax.Var("out", ty)
        block = relax.DataflowBlock([relax.VarBinding(out, body)])
        own = tvm.IRModule({MAIN: relax.Function(params, relax.SeqExpr([block], out), ty)})
        if value.op == CALL_TIR:
            own[value.args[0]] = self.modules[number][value.args[0]]
        return self._legalized(own)

    def _legalized(self, own: tvm.IRModule) -> tuple[list, list]:
        """Return the parameters and kernels of an operator's program, those of an equal one if there was one before."""
        alike = self.legal.setdefault(tvm_ffi.structural_hash(own), [])
        same = next((found for other, found in alike if tvm_ffi.structural_equal(own, other)), None)
        if same is None:
            same = _program(LOOPS(own))
            alike.append((own, same))
        return same

    def shapes(self) -> list[tuple[tuple, tuple]]:
        """Return the shapes of the operands and of the result, which are tensors, at both lengths."""
        return [tuple(array_shape(each.ty) for each in pair) for pair in (*zip(*self.operands, strict=True), self.vars)]

    def _both_loops(self) -> list[tuple[Kernel, Kernel]]:
        """Return the kernels at both lengths in pairs."""
        found = [[kernel for _, _, kernel in self._kernels(number)[1]] for number in (0, 1)]
        if len(found[0]) != len(found[1]):
            raise Mixed("has other loops for another length")
        return list(zip(*found))

    def _kernel(self, kernels: tuple[Kernel, Kernel], args: tuple, known: Mapping, last: bool) -> None:
        """Check the loops of a kernel of the operator."""
        small, large = kernels
        if len(small.stages) != len(large.stages):
            raise Mixed("has other loops for another length")
        shares: tuple[dict, dict] = {}, {}
        values: tuple[dict, dict] = {}, {}
        places: dict = {}
        for before, buffer, one, other in zip(small.inputs, large.inputs, *args, strict=True):
            if is_array(other):
                place, pair = None, (one, other)
                found = shares_of(array_shape(one.ty), array_shape(other.ty), self.lengths, "", self.numbers)
            else:
                found, place = known[other]
                pair = tuple(each[place] for each in self.operands) if place is not None else (None, None)
            places[buffer], shares[0][before], shares[1][buffer] = place, found, found
            for each, array, held in zip((before, buffer), pair, values, strict=True):
                if is_array(array) and "int" in str(array.value.dtype):  # indices, perhaps; others are not looked at
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


def _program(own: tvm.IRModule) -> tuple[list, list]:
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
    shapes = [array_shape(each[0].ty) for each in operator.operands]
    return sliced(operator.values, operator.shares[0], shapes, [array_shape(each.ty) for each in operator.vars])


def _mean(operator: _Operator) -> bool:
    attrs = operator.values[1].attrs
    rank = len(array_shape(operator.operands[1][0].ty))
    axes = operator.along(range(rank) if attrs.axis is None else list(map(int, attrs.axis)))
    operator.need(axes, ZERO)
    operator.found.scaled = [each for each in operator.shares[0] if each.axis in axes]
    return bool(axes)


def _window(operator: _Operator) -> Shares:
    """A convolution, or a pool: reads behind the length find what is in the padding."""
    name, attrs = operator.found.name, operator.values[1].attrs
    if any(map(_any, operator.shares[1:])):
        raise Mixed("is a window whose weights have positions")
    sizes = array_shape(operator.operands[1][1].ty) if name in CONVOLUTIONS else ()
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
        if not has_sizes(var.ty, found, operator.lengths[number]):
            raise Mixed("is a window with another number of results than its size says")
    return tuple(found)


def _split(operator: _Operator) -> list[Shares] | Shares:
    """Parts along an axis without positions; one part alone is no tuple."""
    rank = len(array_shape(operator.operands[1][0].ty))
    if int(operator.values[1].attrs.axis) % rank in {each.axis for each in operator.shares[0]}:
        raise Mixed("splits the positions")
    operator.keep([each.axis for each in operator.shares[0]])
    ty = operator.vars[1].ty
    return [operator.shares[0]] * len(ty.fields) if isinstance(ty, relax.TupleType) else operator.shares[0]


def _batch_norm(operator: _Operator) -> list[Shares]:
    """A norm by numbers of each channel that the model holds."""
    attrs = operator.values[1].attrs
    if any(map(_any, operator.shares[1:])) or getattr(attrs, "training", False):
        raise Mixed("is a norm over the positions")
    return [operator.shares[0], *(() for _ in operator.vars[1].ty.fields[1:])]


def _running_sum(operator: _Operator) -> bool:
    operator.keep([each.axis for each in operator.shares[0]])
    return True


def _elementwise(operator: _Operator) -> bool:
    """Operators place by place; where an operand is not read at the position that is written, the loops are looked at.

    Each place of the result reads that of an operand, whose dimensions are the last ones, or its only one.
    """
    if isinstance(operator.found.shares, list):
        return False
    result, written = array_shape(operator.vars[1].ty), {each.axis: each for each in operator.found.shares}
    kept = {}
    for place, (value, shares) in enumerate(zip(operator.operands[1], operator.shares, strict=True)):
        shape = array_shape(value.ty)
        more, here = len(result) - len(shape), {each.axis: each for each in shares}
        for axis, size in enumerate(shape):
            there = written.get(axis + more)
            if size == 1 and axis not in here:
                continue
            if size != result[axis + more] or (axis in here) != (there is not None):
                return False
            if there is not None:
                if here[axis].extent != there.extent:
                    return False
                kept[place, axis] = axis + more
    operator.found.kept |= kept
    operator.found.loops = list  # which add nothing up
    return True


_ELEMENTWISE = (
    *(
        "abs",
        "add",
        "astype",
        "clip",
        "divide",
        "equal",
        "erf",
        "exp",
        "greater",
        "greater_equal",
        "less",
        "less_equal",
    ),
    *("log", "logical_and", "logical_not", "logical_or", "maximum", "minimum", "multiply", "negative", "nn.gelu"),
    *("nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu", "not_equal", "power", "rsqrt", "sigmoid", "sqrt", "square"),
    *("subtract", "tanh", "where"),
)
_BY_NAME = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
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

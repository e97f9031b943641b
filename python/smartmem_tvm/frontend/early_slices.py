# SPDX-License-Identifier: Apache-2.0
"""Slices of the last positions before the operators that work position by position, instead of behind them.

    y = x @ w;  z = y[:, -1]    becomes    z = x[:, -1] @ w

A static compile moves such a slice by its index map. With an open length the slice begins at an address that is not
known, so that only what is behind it would compute few positions.

Masks of attention, which all layers read, are computed once more for those positions: a place of them takes a few
operations on constants and inputs.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import tvm
from tvm import ir, relax

from smartmem_tvm.analysis.items import bindings_of, operator_of
from smartmem_tvm.analysis.position_work import array_shape, operands
from smartmem_tvm.ir.block import with_args
from smartmem_tvm.ir.public_functions import MAIN

_UNARY = ("tanh", "exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "negative", "abs", "astype", "clip", "nn.relu")
_UNARY += ("nn.gelu", "nn.gelu_tanh", "nn.silu", "logical_not")
_BINARY = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "where", "logical_and", "logical_or")
_BINARY += ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


class Part(NamedTuple):
    """The elements of a tensor that are read, along one axis.

    Attributes
    ----------
    axis : int
    by : int
        The binding of the slice that reads them.
    """

    axis: int
    by: int


class Plan(NamedTuple):
    """Which operators compute less, by the numbers of their bindings: it holds for the model at each length.

    Attributes
    ----------
    slices : dict
        A slice of the last positions -> the axis.
    parts : dict
        What computes a part only -> that part.
    reads : dict
        The same -> operand -> the axis along which it is read at the position of the part.
    twice : set
        Those of them that are computed as a whole, too.
    """

    slices: dict[int, int]
    parts: dict[int, Part]
    reads: dict[int, dict[int, int]]
    twice: set[int]


def early_slices(mod: tvm.IRModule) -> Plan:
    """Return what computes only those of the last positions that a slice reads of it.

    Operators stay as they are if another one reads all of their positions, but those that follow place by place from
    constants and inputs (`_follows`): they are computed for the part besides.

    Parameters
    ----------
    mod : tvm.IRModule
        The model at a length that shows which slices read the last positions, and which sizes are the length.
    """
    bindings, result = list(bindings_of(mod)), mod[MAIN].body.body
    wanted: dict[ir.Var, set[Part | None]] = {}
    for var in result.fields if isinstance(result, ir.Tuple) else [result]:
        wanted.setdefault(var, set()).add(None)
    plan, made, known = Plan({}, {}, {}, set()), {each.var: each.value for each in bindings}, {}
    for number, binding in reversed(list(enumerate(bindings))):
        own = wanted.get(binding.var, {None})
        parts = own - {None}
        part = next(iter(parts)) if len(parts) == 1 else None
        whole = None in own
        if part is not None and whole and not _follows(binding.var, part.axis, made, known):
            part = None
        axes = _axes(binding.value, part.axis) if part is not None else None
        if axes is not None:
            plan.parts[number], plan.reads[number] = part, axes
            if whole:
                plan.twice.add(number)
        elif (axis := _last(binding.value)) is not None:
            plan.slices[number] = axis
            part, axes = Part(axis, number), {0: axis}
        for place, operand in enumerate(operands(binding.value)):
            if isinstance(operand, ir.Var):
                found = None if axes is None or place not in axes else part._replace(axis=axes[place])
                wanted.setdefault(operand, set()).update({found, None} if number in plan.twice else {found})
    return plan


def _follows(operand, axis: int, made: dict, known: dict) -> bool:
    """Whether a tensor follows, place by place along an axis, from constants, inputs, and what has no such axis."""
    if operand not in made:
        return True
    if (operand, axis) not in known:
        value = made[operand]
        axes = _axes(value, axis) if operator_of(value) in (*_UNARY, *_BINARY) else None
        read = operands(value)
        known[operand, axis] = axes is not None and all(
            _follows(read[place], at, made, known) for place, at in axes.items()
        )
    return known[operand, axis]


def with_early_slices(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """Return a model of any length with slices of the last positions in front of what works position by position."""
    return _Writer(mod, plan).module() if plan.parts else mod


def _last(value) -> int | None:
    """Return the axis of a slice of the last positions along one axis; None if it is none."""
    bounds = _bounds(value)
    if bounds is None:
        return None
    axis, begin, end = bounds
    return axis if end == array_shape(value.args[0].ty)[axis] and begin > 0 else None


def _bounds(value) -> tuple[int, int, int] | None:
    """Return the axis, the first element and the end of a slice along one axis; None if it is none."""
    if operator_of(value) != "strided_slice" or len(value.args) < 4:
        return None
    numbers = [[getattr(each, "value", None) for each in getattr(arg, "fields", ())] for arg in value.args[1:]]
    if not all(len(each) == 1 and isinstance(each[0], int) for each in numbers) or numbers[3:] not in ([], [[1]]):
        return None
    shape = array_shape(value.args[0].ty)
    axis = numbers[0][0] % len(shape)
    return axis, *(
        each + shape[axis] if each < 0 else min(each, shape[axis]) for each in (numbers[1][0], numbers[2][0])
    )


def _axes(value, axis: int) -> dict[int, int] | None:
    """Return operand -> the axis along which it is read at the position of the result along `axis`; None if not known.

    An operand that is missing is read as a whole for each position.
    """
    name = operator_of(value)
    if isinstance(value, ir.Var) or name in _UNARY:
        return {0: axis}
    rule = _RULES.get(name)
    return rule(value, axis) if rule is not None else None


def _each(call: ir.Call, axis: int) -> dict[int, int] | None:
    size, found = array_shape(call.ty)[axis], {}
    for place, operand in enumerate(operands(call)):
        shape = array_shape(operand.ty)
        at = axis - len(array_shape(call.ty)) + len(shape)
        if at >= 0 and shape[at] == size:
            found[place] = at
    return found


def _rows(call: ir.Call, axis: int) -> dict[int, int] | None:
    rank = len(array_shape(call.args[0].ty))
    is_row = axis == len(array_shape(call.ty)) - 2 and rank >= 2 and len(array_shape(call.args[1].ty)) >= 2
    return {0: rank - 2} if is_row and isinstance(call.args[0], ir.Var) else None


def _normed(call: ir.Call, axis: int) -> dict[int, int] | None:
    axes = call.attrs.axes if operator_of(call) == "nn.layer_norm" else [call.attrs.axis]
    return {0: axis} if axis not in {int(each) % len(array_shape(call.ty)) for each in axes} else None


def _turned(call: ir.Call, axis: int) -> dict[int, int] | None:
    axes = list(map(int, call.attrs.axes)) if call.attrs.axes else list(reversed(range(len(array_shape(call.ty)))))
    return {0: axes[axis]}


def _reshaped(call: ir.Call, axis: int) -> dict[int, int] | None:
    before, after = array_shape(call.args[0].ty), array_shape(call.ty)
    fitting = [at for at, size in enumerate(before) if size == after[axis] and prod(before[:at]) == prod(after[:axis])]
    return {0: fitting[0]} if len(fitting) == 1 else None


def _sliced(call: ir.Call, axis: int) -> dict[int, int] | None:
    rank = len(array_shape(call.ty))
    numbers = [getattr(each, "value", None) for each in getattr(call.args[1], "fields", [None])]
    return {0: axis} if None not in numbers and axis not in {each % rank for each in numbers} else None


_RULES = {
    **dict.fromkeys(_BINARY, _each),
    "matmul": _rows,
    "nn.layer_norm": _normed,
    "nn.softmax": _normed,
    "permute_dims": _turned,
    "reshape": _reshaped,
    "strided_slice": _sliced,
}
"""Operator -> its function for `_axes`."""


class _Writer:
    """Writes the operators with the parts that are read."""

    def __init__(self, mod: tvm.IRModule, plan: Plan):
        self.mod, self.plan, self.builder = mod, plan, relax.BlockBuilder(mod)
        self.before = list(bindings_of(mod))
        self.bindings: list[relax.VarBinding] = []
        self.instead: dict[ir.Var, ir.Var] = {}  # of a tensor whose part alone is computed, that part
        self.cut: dict[tuple[ir.Var | ir.Constant, Part], ir.Var] = {}

    def module(self) -> tvm.IRModule:
        for number, binding in enumerate(self.before):
            if number in self.plan.slices:
                part = Part(self.plan.slices[number], number)
                self.bindings.append(relax.VarBinding(binding.var, self._read(binding.value.args[0], part)))
            elif number in self.plan.parts:
                if number in self.plan.twice:
                    self.bindings.append(binding)
                self._restricted(binding, self.plan.parts[number], self.plan.reads[number])
            else:
                self.bindings.append(binding)
        main = self.mod[MAIN]
        body = relax.SeqExpr([relax.DataflowBlock(self.bindings)], main.body.body)
        new = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        self.builder.update_func(self.mod.get_global_var(MAIN), new)
        return self.builder.get()

    def _restricted(self, binding: relax.VarBinding, part: Part, reads: dict[int, int]) -> None:
        value = binding.value
        if isinstance(value, ir.Var):
            self.instead[binding.var] = self._read(value, part)
            return
        args, places = list(value.args), _places(value)
        for place, axis in reads.items():
            args[places[place]] = self._read(args[places[place]], part._replace(axis=axis))
        if operator_of(value) == "reshape":
            _, begin, end = _bounds(self.before[part.by].value)
            sizes = list(array_shape(value.ty))
            sizes[part.axis] = end - begin
            args[1] = relax.ShapeExpr(sizes)
        self.instead[binding.var] = self._emit(with_args(value, *args), binding.var.name)

    def _read(self, operand: ir.Var | ir.Constant, part: Part) -> ir.Var:
        """Return a part of a tensor: all that is computed of it, or a slice."""
        if operand in self.instead:
            return self.instead[operand]
        if (operand, part) not in self.cut:
            _, begin, end = _bounds(self.before[part.by].value)
            value = relax.op.strided_slice(operand, [part.axis], [begin], [end], [1], assume_inbound=True)
            self.cut[operand, part] = self._emit(value, f"{getattr(operand, 'name', 'constant')}_last")
        return self.cut[operand, part]

    def _emit(self, value: relax.Expr, name: str) -> ir.Var:
        value = self.builder.normalize(value)
        var = relax.DataflowVar(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var


def _places(call: ir.Call) -> list[int]:
    """Return the places of the tensors among the arguments of a call."""
    return [place for place, each in enumerate(call.args) if isinstance(each, ir.Var | ir.Constant)]

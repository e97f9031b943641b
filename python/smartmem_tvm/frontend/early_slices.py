# SPDX-License-Identifier: Apache-2.0
"""Slices of the last positions before the operators that work position by position, instead of behind them.

    y = x @ w;  z = y[:, -1]    becomes    z = x[:, -1] @ w

A static compile moves such a slice by its index map. With an open length the slice begins at an address that is not
known, so that only what is behind it would compute few positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import tvm
from tvm import ir, relax

from smartmem_tvm.analysis.items import bindings_of, operator_of
from smartmem_tvm.ir.block import with_args
from smartmem_tvm.ir.public_functions import MAIN

_UNARY = ("tanh", "exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "negative", "abs", "astype", "clip", "nn.relu")
_UNARY += ("nn.gelu", "nn.gelu_tanh", "nn.silu")
_BINARY = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "where")


class Part(NamedTuple):
    """The elements of a tensor that are read, along one axis."""

    axis: int
    begin: int
    end: int


def with_early_slices(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a model in which operators compute only those of the last positions that a slice reads of them.

    Operators stay as they are if another one reads all of their positions.
    """
    bindings, result = list(bindings_of(mod)), mod[MAIN].body.body
    parts = _parts(bindings, result)
    if not any(operator_of(each.value) != "strided_slice" for each in bindings if each.var in parts):
        return mod
    return _Writer(mod, parts).module(bindings)


def _parts(bindings: Sequence[relax.VarBinding], result) -> dict[ir.Var, Part]:
    """Return the part that is read of each tensor of which less than the whole is read."""
    wanted: dict[ir.Var, set[Part | None]] = {}
    for var in result.fields if isinstance(result, ir.Tuple) else [result]:
        wanted.setdefault(var, set()).add(None)
    for binding in reversed(bindings):
        own = wanted.get(binding.var, {None})
        part = next(iter(own)) if len(own) == 1 else None
        asked = _last(binding.value) if part is None else None
        axes = {0: asked.axis} if asked is not None else _axes(binding.value, part.axis) if part is not None else None
        if asked is None and axes is None:
            wanted[binding.var] = {None}  # the whole is computed, and a slice of it stays a slice
        for place, operand in enumerate(_tensors(binding.value)):
            if isinstance(operand, ir.Var):
                found = None if axes is None or place not in axes else (asked or part)._replace(axis=axes[place])
                wanted.setdefault(operand, set()).add(found)
    single = {var: next(iter(own)) for var, own in wanted.items() if len(own) == 1}
    made = {each.var for each in bindings}
    return {var: part for var, part in single.items() if part is not None and var in made}


def _last(value) -> Part | None:
    """Return what a slice of the last positions along one axis reads; None if it is none."""
    if operator_of(value) != "strided_slice" or len(value.args) < 4:
        return None
    numbers = [[getattr(each, "value", None) for each in getattr(arg, "fields", ())] for arg in value.args[1:]]
    if not all(len(each) == 1 and isinstance(each[0], int) for each in numbers) or numbers[3:] not in ([], [[1]]):
        return None
    shape = _shape(value.args[0])
    axis = numbers[0][0] % len(shape)
    begin, end = (each + shape[axis] if each < 0 else min(each, shape[axis]) for each in (numbers[1][0], numbers[2][0]))
    return Part(axis, begin, end) if end == shape[axis] and (begin > 0 or end == 1) else None


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
    size, found = _result(call)[axis], {}
    for place, operand in enumerate(_tensors(call)):
        shape = _shape(operand)
        at = axis - len(_result(call)) + len(shape)
        if at >= 0 and shape[at] == size:
            if not isinstance(operand, ir.Var):
                return None
            found[place] = at
    return found


def _rows(call: ir.Call, axis: int) -> dict[int, int] | None:
    rank = len(_shape(call.args[0]))
    is_row = axis == len(_result(call)) - 2 and rank >= 2 and len(_shape(call.args[1])) >= 2
    return {0: rank - 2} if is_row and isinstance(call.args[0], ir.Var) else None


def _normed(call: ir.Call, axis: int) -> dict[int, int] | None:
    axes = call.attrs.axes if operator_of(call) == "nn.layer_norm" else [call.attrs.axis]
    return {0: axis} if axis not in {int(each) % len(_result(call)) for each in axes} else None


def _turned(call: ir.Call, axis: int) -> dict[int, int] | None:
    axes = list(map(int, call.attrs.axes)) if call.attrs.axes else list(reversed(range(len(_result(call)))))
    return {0: axes[axis]}


def _reshaped(call: ir.Call, axis: int) -> dict[int, int] | None:
    before, after = _shape(call.args[0]), _result(call)
    fitting = [at for at, size in enumerate(before) if size == after[axis] and prod(before[:at]) == prod(after[:axis])]
    return {0: fitting[-1]} if fitting else None  # of several of size 1 the last one, as a batch of one comes first


def _sliced(call: ir.Call, axis: int) -> dict[int, int] | None:
    rank = len(_result(call))
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

    def __init__(self, mod: tvm.IRModule, parts: dict[ir.Var, Part]):
        self.mod, self.parts, self.builder = mod, parts, relax.BlockBuilder(mod)
        self.bindings: list[relax.VarBinding] = []
        self.instead: dict[ir.Var, ir.Var] = {}  # of a tensor whose part alone is computed, that part
        self.cut: dict[tuple[ir.Var, Part], ir.Var] = {}

    def module(self, bindings: Sequence[relax.VarBinding]) -> tvm.IRModule:
        for binding in bindings:
            part = self.parts.get(binding.var)
            asked = _last(binding.value) if part is None else None
            if asked is not None:
                self._bind(binding.var, self._read(binding.value.args[0], asked))
            elif part is None:
                self.bindings.append(binding)
            else:
                self._restricted(binding, part)
        main = self.mod[MAIN]
        body = relax.SeqExpr([relax.DataflowBlock(self.bindings)], main.body.body)
        new = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        self.builder.update_func(self.mod.get_global_var(MAIN), new)
        return self.builder.get()

    def _restricted(self, binding: relax.VarBinding, part: Part) -> None:
        value, axes = binding.value, _axes(binding.value, part.axis)
        if isinstance(value, ir.Var):
            self.instead[binding.var] = self._read(value, part)
            return
        count, args, places = part.end - part.begin, list(value.args), _places(value)
        for place, axis in axes.items():
            args[places[place]] = self._read(args[places[place]], part._replace(axis=axis))
        if operator_of(value) == "reshape":
            sizes = list(_result(value))
            sizes[part.axis] = count
            args[1] = relax.ShapeExpr(sizes)
        self.instead[binding.var] = self._emit(with_args(value, *args), binding.var.name)

    def _read(self, operand: ir.Var, part: Part) -> ir.Var:
        """Return a part of a tensor: all that is computed of it, or a slice."""
        if operand in self.instead:
            return self.instead[operand]
        if (operand, part) not in self.cut:
            bounds = ([part.axis], [part.begin], [part.end], [1])
            self.cut[operand, part] = self._emit(
                relax.op.strided_slice(operand, *bounds, assume_inbound=True), f"{operand.name}_last"
            )
        return self.cut[operand, part]

    def _emit(self, value: relax.Expr, name: str) -> ir.Var:
        value = self.builder.normalize(value)
        var = relax.DataflowVar(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _bind(self, var: ir.Var, value: ir.Var) -> None:
        self.bindings.append(relax.VarBinding(var, value))


def _places(call: ir.Call) -> list[int]:
    """Return the places of the tensors among the arguments of a call."""
    return [place for place, each in enumerate(call.args) if isinstance(each, ir.Var | ir.Constant)]


def _tensors(value) -> list:
    """Return the variables and constants that a value reads."""
    if isinstance(value, ir.Var):
        return [value]
    if isinstance(value, ir.Call):
        found = []
        for each in value.args:
            found += (
                _tensors(each)
                if isinstance(each, ir.Tuple)
                else [each]
                if isinstance(each, ir.Var | ir.Constant)
                else []
            )
        return found
    if isinstance(value, ir.Tuple):
        return [each for part in value.fields for each in _tensors(part)]
    if isinstance(value, ir.TupleGetItem):
        return [value.tuple_value]
    return []


def _shape(value) -> tuple[int, ...]:
    return tuple(map(int, value.ty.shape)) if getattr(value.ty, "shape", None) else ()


def _result(call: ir.Call) -> tuple[int, ...]:
    return tuple(map(int, call.ty.shape))

# SPDX-License-Identifier: Apache-2.0
"""The bindings of a dataflow block of Relax operators, for passes that change a few of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import tvm
from tvm import ir, relax

from .graph import append_log
from .index_map import variables
from .walk import collect

_PREFIX = "relax."
CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")


class Bindings:
    """The bindings of a dataflow block by variable, with the readers of each variable; `edit` changes them."""

    def __init__(self, block: relax.DataflowBlock):
        self.order = [binding.var for binding in block.bindings]
        self.position = {var: i for i, var in enumerate(self.order)}
        self.values = {binding.var: getattr(binding, "value", None) for binding in block.bindings}
        self._bindings = {binding.var: binding for binding in block.bindings}
        self._readers: dict = {}
        for var in self.order:
            self._register(var)

    def _register(self, var) -> None:
        for operand in collect(self.values[var], ir.Var):
            self._readers.setdefault(operand, Counter())[var] += 1

    def readers(self, var) -> list:
        """Return the variables whose values read `var`, once per read: a product of `var` with itself counts twice."""
        return list(self._readers.get(var, Counter()).elements())

    def is_read_once(self, var) -> bool:
        """Whether `var` has exactly one read, inside the block."""
        return isinstance(var, relax.DataflowVar) and len(self.readers(var)) == 1

    def edit(self, edits: dict) -> None:
        """Bind variables to other values, which may be nested calls."""
        for var, value in edits.items():
            for operand in variables(self.values[var]):
                self._readers[operand].pop(var, None)
            self.values[var] = value
            self._register(var)

    def add(self, before, name: str, value) -> relax.DataflowVar:
        """Return a new variable, bound to a value in front of the binding of `before`."""
        value = relax.BlockBuilder().normalize(value)
        var = relax.DataflowVar(name, value.ty)
        self.order.insert(self.order.index(before), var)
        self.position[var] = self.position[before]
        self.values[var], self._bindings[var] = value, None
        self._register(var)
        return var

    def write(self) -> relax.DataflowBlock:
        """Return the edited block."""
        builder = relax.BlockBuilder()
        bindings = []
        for var in self.order:
            old, value = self._bindings[var], self.values[var]
            if getattr(old, "value", None) is value:
                bindings.append(old)
                continue
            args = [self._bound(arg, var, builder, bindings) for arg in getattr(value, "args", ())]
            value = with_args(value, *args) if args else value
            bindings.append(relax.VarBinding(var, builder.normalize(value)))
        return relax.DataflowBlock(bindings)

    def _bound(self, arg, var, builder: relax.BlockBuilder, bindings: list):
        """Return an operand of the value of `var`; a nested call is first bound to a variable of its own."""
        if not isinstance(arg, ir.Call):
            return arg
        inner = builder.normalize(with_args(arg, *(self._bound(each, var, builder, bindings) for each in arg.args)))
        bindings.append(relax.VarBinding(relax.DataflowVar(f"{var.name}_inner", inner.ty), inner))
        return bindings[-1].var


def rewrite_blocks(mod: tvm.IRModule, rewrite: Callable, leaves_unread: bool = False) -> tvm.IRModule:
    """Rewrite every dataflow block of a copy of `mod`, and record the decisions on it.

    Parameters
    ----------
    mod : tvm.IRModule
        The module; not changed.
    rewrite : callable
        Block -> (new block, decisions); without decisions the block stays unchanged.
    leaves_unread : bool
        Whether `rewrite` may leave variables without readers. These are removed; otherwise their operands would seem
        to have more readers than they do.
    """
    mod = mod.clone()
    log: list[dict] = []
    for gvar, function in mod.functions.items():
        if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
            continue
        blocks, before = [], len(log)
        for block in function.body.blocks:
            new, decisions = rewrite(block) if isinstance(block, relax.DataflowBlock) else (block, [])
            blocks.append(new if decisions else block)
            log.extend(decisions)
        if len(log) > before:
            body = relax.SeqExpr(blocks, function.body.body)
            new = relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
            mod.update_func(gvar, new)
    if not log:
        return mod
    mod = relax.transform.CanonicalizeBindings()(append_log(mod, log))
    return relax.transform.DeadCodeElimination()(mod) if leaves_unread else mod


def edit_blocks(mod: tvm.IRModule, edit: Callable[[Bindings], list[dict]], leaves_unread: bool = False) -> tvm.IRModule:
    """Call `rewrite_blocks` with a function that edits the bindings in place and returns its decisions."""

    def rewrite(block: relax.DataflowBlock) -> tuple[relax.DataflowBlock, list[dict]]:
        bindings = Bindings(block)
        decisions = edit(bindings)
        return (bindings.write() if decisions else block), decisions

    return rewrite_blocks(mod, rewrite, leaves_unread)


def add_functions(mod: tvm.IRModule, builder: relax.BlockBuilder) -> tvm.IRModule:
    """Return `mod` with the functions that a builder has made besides, and without those that it does not call."""
    known = {gvar.name_hint for gvar in mod.get_global_vars()}
    added = [(gvar, func) for gvar, func in builder.get().functions_items() if gvar.name_hint not in known]
    mod = mod.clone()
    for gvar, func in added:
        mod.update_func(gvar, func)
    return relax.transform.DeadCodeElimination()(mod) if added else mod


def folded(name: str, var, edits: dict, flops: int) -> dict:
    """Return the log entry of pass `name`: `flops` operations per element of `var` were folded into constants.

    Parameters
    ----------
    edits : dict
        The variables whose constants changed.
    flops : int
        Operations saved for each element of `var`.
    """
    into = [each.name for each in edits]
    saved = flops * math.prod(shape_of(var))
    return {"pass": name, "operator": var.name, "action": "folded", "into": into, "flops_saved": saved}


def operator(value) -> str:
    """Return the name of the Relax operator that a value calls, without its prefix; empty if it calls none."""
    known = isinstance(value, ir.Call) and isinstance(value.op, ir.Op)
    return value.op.name.removeprefix(_PREFIX) if known else ""


def shape_of(expr) -> tuple[int, ...] | None:
    """Return the static shape of a tensor; None for anything else."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    try:
        return tuple(int(dim) for dim in ty.shape)
    except (TypeError, ValueError):
        return None


def weight(expr) -> np.ndarray | None:
    """Return the values of a floating point constant; None for anything else."""
    tensor = isinstance(expr, ir.Constant) and isinstance(expr.ty, relax.TensorType)
    if not tensor or not str(expr.ty.dtype.dtype).startswith("float"):
        return None
    return expr.value.numpy()


def with_args(call: ir.Call, *args) -> ir.Call:
    """Return the same call with other operands."""
    return ir.Call(call.op, list(args), call.attrs, call.ty_args)


def constant(array: np.ndarray, like: np.ndarray) -> ir.Constant:
    """Return a Relax constant of the dtype of `like`."""
    return as_constant(np.asarray(array).astype(like.dtype, copy=False))


def as_constant(array: np.ndarray) -> ir.Constant:
    """Return a Relax constant of the dtype of `array`; without a dtype, TVM narrows 64 bits to 32."""
    return relax.const(np.asarray(array, order="C"), str(array.dtype))  # not ascontiguousarray: it makes scalars 1-D

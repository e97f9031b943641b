# SPDX-License-Identifier: Apache-2.0
"""KeepCaches: inputs that come back with new rows in them become caches, and only the rows are written."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...analysis.cache_writes import RowWrite, Writes
from ...errors import UserError
from ...ir.cache_rows import Cache, rows_writer, with_caches
from ...ir.graph import append_log
from ...ir.index_map import variables
from ...ir.public_functions import public_functions

_KIND = "int64"
_NAME = "write_rows"


@tvm.transform.module_pass(opt_level=0, name="smartmem.KeepCaches")
class KeepCaches:
    """Let a kernel write the new rows of a cache, which all readers then read, and note which inputs are caches.

    Before (a ``where`` here; `analysis.cache_writes` lists what is known)::

        present = where(arange == position, new, past)                   # past: an input, present: a result

    After::

        present = call_tir(write_rows, (past, new, reshape(position)))   # attribute of the function: past is a cache

    Until kernels get their schedules, the kernel writes a whole new tensor; then `WriteInPlace` lets it write the rows
    only. No other pass fuses it. Refused are an input that something else reads, too (it would see the new rows), a
    result that comes from the input in another way, and symbolic shapes.

    Parameters
    ----------
    pairs : mapping, optional
        Input -> result of the caches, which are refused with an error; by default all that are found, with reasons in
        the log.
    """

    def __init__(self, pairs: Mapping[str, str] | None = None):
        self.pairs = pairs

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every public function of `mod`."""
        for name in public_functions(mod):
            work = _Function(mod, mod[name], self.pairs)
            mod = append_log(work.run(name), work.log)
        return mod


@dataclass
class _Function:
    mod: tvm.IRModule
    function: relax.Function
    pairs: Mapping[str, str] | None
    log: list[dict] = field(default_factory=list)

    def run(self, name: str) -> tvm.IRModule:
        inputs, outputs = self._names()
        results, writes = _results(self.function), Writes(self.function)
        found: dict[relax.Var, tuple[RowWrite, Cache]] = {}
        for number, result in enumerate(results):
            write = writes.of(result) if isinstance(result, relax.Var) else None
            if write is None or not self._asked(inputs, outputs, write, number):
                continue
            at = list(self.function.params).index(write.past)
            reason = "two results come from it" if any(write.past.same_as(w.past) for w, _ in found.values()) else ""
            reason = reason or ("it is two results" if result in found else "")
            if reason:
                self._refuse(inputs[at], reason)
                continue
            found[result] = write, Cache(at, number, inputs[at], write.axis, write.sequences, write.circular)
        self._refuse_missing(inputs, outputs, {cache.name for _, cache in found.values()})
        return self._written(name, found) if found else self.mod

    def _names(self) -> tuple[list[str], list[str]]:
        attrs = self.function.attrs or {}
        inputs = list(map(str, attrs.get("input_names", [each.name for each in self.function.params])))
        count = len(_results(self.function))
        outputs = list(map(str, attrs.get("output_names", [f"output_{number}" for number in range(count)])))
        return inputs, outputs

    def _asked(self, inputs: list[str], outputs: list[str], write: RowWrite, number: int) -> bool:
        at = next(at for at, each in enumerate(self.function.params) if each.same_as(write.past))
        return self.pairs is None or self.pairs.get(inputs[at]) == outputs[number]

    def _refuse(self, name: str, reason: str) -> None:
        if self.pairs is not None:
            raise UserError(f"Input '{name}' cannot be a cache, as {reason}: leave it out of the caches.")
        self.log.append({"pass": "KeepCaches", "operator": name, "action": "refused", "reason": reason})

    def _refuse_missing(self, inputs: list[str], outputs: list[str], found: set[str]) -> None:
        for past, present in (self.pairs or {}).items():
            if past not in inputs or present not in outputs:
                kind, known, name = ("input", inputs, past) if past not in inputs else ("output", outputs, present)
                listed = ", ".join(f"'{each}'" for each in known)
                raise UserError(f"The model has no {kind} '{name}', and --cache names it: use one of {listed}.")
            if past not in found:
                raise UserError(
                    f"Output '{present}' is not input '{past}' with new rows by Where, ScatterElements, ScatterND or "
                    f"TensorScatter: export the model with a cache of fixed size, or leave this pair out of --cache."
                )

    def _written(self, name: str, found: dict) -> tvm.IRModule:
        """Replace the operators of the caches by calls of kernels that write rows."""
        mod, blocks = self.mod.clone(), []
        for block in self.function.body.blocks:
            bindings = []
            for each in block.bindings:
                if each.var in found:
                    bindings += _write(mod, each.var, found[each.var][0])
                else:
                    bindings.append(each)
            blocks.append(type(block)(bindings))
        old = self.function
        new = relax.Function(old.params, relax.SeqExpr(blocks, old.body.body), old.ret_ty, old.is_pure, old.attrs)
        gvar = mod.get_global_var(name)
        mod.update_func(gvar, new)
        mod = relax.transform.DeadCodeElimination()(mod)
        shared = [cache for write, cache in found.values() if _uses(mod[gvar], cache.input) != 1]
        for each in shared:
            self._refuse(each.name, "another operator reads it, which would see the new rows")
        if shared:
            names = {each.name for each in shared}
            left = {var: pair for var, pair in found.items() if pair[1].name not in names}
            return self._written(name, left) if left else self.mod
        caches = sorted((cache for _, cache in found.values()), key=lambda each: each.input)
        self.log += [{"pass": "KeepCaches", "operator": each.name, "action": "kept in place"} for each in caches]
        mod.update_func(gvar, with_caches(mod[gvar], caches))
        return mod


def _results(function: relax.Function) -> list[relax.Expr]:
    values = {each.var: each.value for block in function.body.blocks for each in block.bindings}
    result = function.body.body
    while isinstance(result, relax.Var) and isinstance(values.get(result), relax.Var | relax.Tuple):
        result = values[result]
    fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    return [_origin(each, values) for each in fields]


def _origin(result: relax.Expr, values: Mapping) -> relax.Expr:
    while isinstance(result, relax.Var) and isinstance(values.get(result), relax.Var):
        result = values[result]
    return result


def _uses(function: relax.Function, number: int) -> int:
    """Count the mentions of a parameter."""
    param = function.params[number]
    values = [each.value for block in function.body.blocks for each in block.bindings]
    return sum(param in variables(each) for each in [*values, function.body.body])


def _write(mod: tvm.IRModule, var: relax.Var, write: RowWrite) -> list[relax.Binding]:
    """Return bindings that give `var` the cache with its new rows."""
    shape, dtype = [int(dim) for dim in write.past.ty.shape], str(write.past.ty.dtype.dtype)
    bindings: list[relax.Binding] = []

    def emit(expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Var) or not isinstance(expr, tvm.ir.Call):
            return expr
        made = relax.BlockBuilder().normalize(expr)
        bindings.append(relax.VarBinding(relax.DataflowVar(f"{var.name}_{len(bindings)}", made.ty), made))
        return bindings[-1].var

    new = emit(write.new)
    count = int(new.ty.shape[write.axis])
    rows = emit(relax.op.reshape(write.rows, [write.sequences, 1 if write.first else count]))
    if str(rows.ty.dtype.dtype) != _KIND:
        rows = emit(relax.op.astype(rows, _KIND))
    if write.first:
        rows = emit(relax.op.add(rows, relax.const(np.arange(count)[None], _KIND)))
    if write.circular:
        rows = emit(relax.op.floor_mod(rows, relax.const(shape[write.axis], _KIND)))
    kernel = rows_writer(shape, dtype, (write.sequences, count), write.axis)
    gvar = _added(mod, kernel)
    call = relax.call_tir(gvar, relax.Tuple([write.past, new, rows]), relax.TensorType(shape, dtype))
    return [*bindings, relax.VarBinding(var, relax.BlockBuilder().normalize(call))]


def _added(mod: tvm.IRModule, kernel: tirx.PrimFunc) -> ir.GlobalVar:
    """Add a kernel to a module, in place, unless it is there; return its variable.

    A builder for the module would look for a free name without end where functions are called ``main_0``.
    """
    names = {each.name_hint: each for each in mod.get_global_vars()}
    for number in itertools.count():
        name = f"{_NAME}{number or ''}"
        if name not in names:
            gvar = relax.BlockBuilder().add_func(kernel, name)
            mod[gvar] = kernel
            return gvar
        if isinstance(mod[name], tirx.PrimFunc) and tvm_ffi.structural_equal(mod[name], kernel):
            return names[name]

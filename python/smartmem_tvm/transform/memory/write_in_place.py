# SPDX-License-Identifier: Apache-2.0
"""WriteInPlace: kernels that write rows into caches write them where the caches are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import tvm
from tvm import ir, relax, tirx

from ...ir.cache_rows import FIXED_FROM, rows_in_place
from ...ir.index_map import variables
from ...ir.kernel import CACHE_AXIS, Kernel, Opaque, parse
from ...target import is_gpu

_CALL_TIR = ir.Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="smartmem.WriteInPlace")
class WriteInPlace:
    """Let the kernels that `KeepCaches` has made write into the cache itself.

    Before::

        present = call_tir(write_rows, (past, new, rows))            # a new tensor: past, with the new rows

    After::

        present = call_tir_inplace(write_rows, (past, new, rows))    # past itself

    `KeepCaches` has made sure that nothing else reads ``past``, and passes do not make further readers of it: kernels
    that read ``present`` run after the write. Refused is nothing.

    On GPUs, where all small kernels of a token take about as long, the kernel computes the new rows and their numbers
    itself, where one element-wise kernel makes them, and one kernel writes the rows of several caches of one shape, as
    the keys and values of a layer.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        kernels = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
        writers = {gvar for gvar, func in kernels.items() if CACHE_AXIS in (func.attrs or {})}
        if not writers:
            return mod
        builder = relax.BlockBuilder(mod)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                builder.update_func(gvar, _InPlace(func, builder, kernels, writers).function())
        return relax.transform.DeadCodeElimination()(builder.get())


class _Writer(NamedTuple):
    """A call that writes rows: its binding, its cache, what is equal for all that one launch may write, and parts."""

    binding: relax.VarBinding
    past: relax.Var
    facts: tuple
    made: tuple[Kernel | None, Kernel | None]
    read: list[relax.Expr]


class _InPlace:
    """The rewriting of one function."""

    def __init__(self, function: relax.Function, builder: relax.BlockBuilder, kernels: Mapping, writers: Collection):
        self._function, self._builder, self._kernels, self._writers = function, builder, kernels, writers
        self._moving = _moving(function)
        self._values = {each.var: each.value for block in function.body.blocks for each in block.bindings}

    def function(self) -> relax.Function:
        old = self._function
        blocks = [type(block)(self._bindings(list(block.bindings))) for block in old.body.blocks]
        return relax.Function(old.params, relax.SeqExpr(blocks, old.body.body), old.ret_ty, old.is_pure, old.attrs)

    def _bindings(self, bindings: list) -> list:
        groups = self._groups(bindings)
        last = {id(group[-1].binding): group for group in groups}
        inside = {id(writer.binding) for group in groups for writer in group}
        result = []
        for each in bindings:
            if id(each) in last:
                result += self._written(last[id(each)])
            elif id(each) not in inside:
                result.append(each)
        return result

    def _groups(self, bindings: list) -> list[list[_Writer]]:
        """Return the calls that write rows; those that one launch makes, because nothing reads one before the last."""
        groups: list[list[_Writer]] = []
        open_groups: list[list[_Writer]] = []
        for each in bindings:
            writer = self._writer(each)
            read = variables(each.value)
            open_groups = [g for g in open_groups if not any(w.binding.var in read for w in g)]
            if writer is None:
                continue
            group = next((g for g in open_groups if g[0].facts == writer.facts), None) if _on_gpu() else None
            if group is None:
                group = []
                groups.append(group)
                open_groups.append(group)
            group.append(writer)
        return groups

    def _writer(self, binding) -> _Writer | None:
        call = binding.value
        if not isinstance(call, ir.Call) or not call.op.same_as(_CALL_TIR) or call.args[0] not in self._writers:
            return None
        past, fresh, rows = call.args[1].fields
        shape, numbers = (tuple(int(dim) for dim in each.ty.shape) for each in (past, rows))
        (made, read), (counted, counts) = (self._made(each) if _on_gpu() else (None, [each]) for each in (fresh, rows))
        facts = shape, str(past.ty.dtype.dtype), numbers, int(self._kernels[call.args[0]].attrs[CACHE_AXIS])
        return _Writer(binding, past, facts, (made, counted), [*read, *counts])

    def _written(self, group: list[_Writer]) -> list:
        """Return the bindings of one launch that writes the rows of some caches."""
        gvar = self._builder.add_func(rows_in_place(*group[0].facts, [each.made for each in group]), "write_rows")
        given = relax.Tuple([*(each.past for each in group), *(tensor for each in group for tensor in each.read)])
        types = [each.binding.var.ty for each in group]
        if len(group) == 1:
            call = relax.op.call_tir_inplace(gvar, given, 0, types[0])
            return [relax.VarBinding(group[0].binding.var, self._builder.normalize(call))]
        call = self._builder.normalize(relax.op.call_tir_inplace(gvar, given, list(range(len(group))), types))
        both = relax.DataflowVar("rows_written", call.ty)
        parts = [self._builder.normalize(relax.TupleGetItem(both, number)) for number in range(len(group))]
        named = [relax.VarBinding(each.binding.var, part) for each, part in zip(group, parts, strict=True)]
        return [relax.VarBinding(both, call), *named]

    def _made(self, tensor: relax.Expr) -> tuple[Kernel | None, list[relax.Expr]]:
        """Return the element-wise kernel that makes a tensor and what it reads, or None and the tensor."""
        call = self._values.get(tensor) if isinstance(tensor, relax.Var) else None
        if not isinstance(call, ir.Call) or not call.op.same_as(_CALL_TIR) or len(call.args) > 2:
            return None, [tensor]
        try:
            kernel = parse(self._kernels[call.args[0]])
        except (Opaque, KeyError):
            return None, [tensor]
        read, stages = list(call.args[1].fields), kernel.stages
        if any(each.same_as(param) for each in read for param in self._moving):
            return None, [tensor]
        pointwise = len(stages) == len(kernel.outputs) == 1 and stages[0].is_pointwise
        whole = pointwise and len(stages[0].spatial) == len(tensor.ty.shape)
        return (kernel, read) if whole else (None, [tensor])


def _moving(func) -> list[relax.Var]:
    """Return the parameters of a function whose addresses change from call to call, where others stay."""
    fixed = (func.attrs or {}).get(FIXED_FROM) if isinstance(func, relax.Function) else None
    return [] if fixed is None else list(func.params)[: int(fixed)]


def _on_gpu() -> bool:
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and is_gpu(target)

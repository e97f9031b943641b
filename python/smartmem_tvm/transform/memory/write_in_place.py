# SPDX-License-Identifier: Apache-2.0
"""WriteInPlace: kernels that write rows into caches write them where the caches are."""

from __future__ import annotations

import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.cache_rows import FIXED_FROM, rows_writer
from ...ir.kernel import CACHE_AXIS, Kernel, Opaque, parse
from ...ir.rewrite_calls import rewrite_calls
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
    itself, where one element-wise kernel makes them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        kernels = [gvar for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc) and _is_writer(func)]
        if not kernels:
            return mod
        return relax.transform.DeadCodeElimination()(rewrite_calls(mod, _InPlace(mod, kernels)))


def _is_writer(func: tirx.PrimFunc) -> bool:
    return CACHE_AXIS in (func.attrs or {})


@mutator
class _InPlace(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, kernels: list[ir.GlobalVar]):
        super().__init__(mod)
        self._kernels = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
        self._moving = [param for func in mod.functions.values() for param in _moving(func)]
        self._axes = {gvar: int(mod[gvar].attrs[CACHE_AXIS]) for gvar in kernels}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not call.op.same_as(_CALL_TIR) or call.args[0] not in self._axes:
            return call
        past, fresh, rows = call.args[1].fields
        shape, numbers = [int(dim) for dim in past.ty.shape], [int(dim) for dim in rows.ty.shape]
        (made, read), (counted, counts) = (self._made(each) if _on_gpu() else (None, [each]) for each in (fresh, rows))
        facts = shape, str(past.ty.dtype.dtype), numbers, self._axes[call.args[0]]
        gvar = self.builder_.add_func(rows_writer(*facts, in_place=True, made=made, counted=counted), "write_rows")
        return relax.op.call_tir_inplace(gvar, relax.Tuple([past, *read, *counts]), 0, call.ty)

    def _made(self, tensor: relax.Expr) -> tuple[Kernel | None, list[relax.Expr]]:
        """Return the element-wise kernel that makes a tensor and what it reads, or None and the tensor."""
        call = self.lookup_binding(tensor) if isinstance(tensor, relax.Var) else None
        if not isinstance(call, relax.Call) or not call.op.same_as(_CALL_TIR) or len(call.args) > 2:
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

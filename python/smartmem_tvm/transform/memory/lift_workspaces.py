# SPDX-License-Identifier: Apache-2.0
"""LiftWorkspaces: the graph, not the kernel, allocates the device memory of a kernel's workspace."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.graph import CALL_TIR, private_calls
from ...ir.walk import collect_outside


@module_pass(opt_level=0, name="LiftWorkspaces")
class LiftWorkspaces:
    """Turn what a scheduled kernel allocates in global memory into further results of its call, which no kernel reads.

    Before (``sums`` takes two device kernels, with ``part`` between them)::

        y = call_tir(sums, (x,), out=T(8))                  sums(x, y): part = alloc(8, 64); ...

    After::

        both = call_tir(sums, (x,), out=(T(8), T(8, 64)))   sums(x, y, part): ...
        y = both[0]

    TVM's memory planner then shares the workspace's memory with the tensors of the graph, and its address stays the
    same, as a CUDA graph needs.

    Refuses (leaves as they are) functions with callers other than this module's ``call_tir``, and functions whose
    buffers have no constant shape.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        private = private_calls(mod)
        own = {gvar: workspaces(func) for gvar, func in mod.functions_items() if gvar in private}
        lifted = {gvar: buffers for gvar, buffers in own.items() if buffers and all(map(_is_static, buffers))}
        if not lifted:
            return mod
        # A GlobalVar keeps the type of its function: lifted functions get new ones, with the names of the old ones.
        others = {g: f for g, f in mod.functions_items() if g not in lifted}
        calls = _Calls(tvm.IRModule(others, attrs=mod.attrs, global_infos=mod.global_infos))
        for gvar, own in lifted.items():
            wider = calls.builder_.add_func(with_parameters(mod[gvar], own), gvar.name_hint)
            calls.wider[gvar] = wider, own
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                calls.builder_.update_func(gvar, calls.visit_expr(func))
        return calls.builder_.get()


def workspaces(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """Return the buffers that a PrimFunc allocates in global memory outside of loops, between its device kernels."""
    blocks = collect_outside(func.body, s_tir.SBlock, tirx.For)
    return [buffer for block in blocks for buffer in block.alloc_buffers if buffer.scope() == "global"]


def _is_static(buffer: tirx.Buffer) -> bool:
    return all(isinstance(dim, tirx.IntImm) for dim in buffer.shape)


def with_parameters(func: tirx.PrimFunc, own: Sequence[tirx.Buffer]) -> tirx.PrimFunc:
    """Return a kernel with its own buffers (`workspaces`) as its last parameters."""

    def without(block: s_tir.SBlock) -> s_tir.SBlock:
        kept = [buffer for buffer in block.alloc_buffers if not any(buffer.same_as(each) for each in own)]
        if len(kept) == len(block.alloc_buffers):
            return block
        parts = (block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init)
        return s_tir.SBlock(*parts, kept, block.match_buffers, block.annotations)

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, without))
    return tirx.PrimFunc([*func.params, *own], body, func.ret_type, func.attrs)


@mutator
class _Calls(PyExprMutator):
    """Rewriter of calls: those of lifted functions allocate the workspaces beside the results."""

    def __init__(self, mod: IRModule):
        super().__init__(mod)
        self.wider: dict[ir.GlobalVar, tuple[ir.GlobalVar, Sequence[tirx.Buffer]]] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Widen one call."""
        call = self.visit_expr_post_order(call)
        if call.op != CALL_TIR or call.args[0] not in self.wider:
            return call
        gvar, own = self.wider[call.args[0]]
        several = isinstance(call.ty, relax.TupleType)
        results = list(call.ty.fields) if several else [call.ty]
        wider = [*results, *(relax.TensorType(buffer.shape, str(buffer.dtype)) for buffer in own)]
        every = self.builder_.emit(relax.call_tir(gvar, call.args[1], wider))
        items = [relax.TupleGetItem(every, index) for index in range(len(results))]
        return relax.Tuple([self.builder_.emit(item) for item in items]) if several else items[0]

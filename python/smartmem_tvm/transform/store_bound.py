# SPDX-License-Identifier: Apache-2.0
"""StoreBound: numbers with names that are made of bfloat16 are in memory."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..ir.map_functions import map_functions
from ..ir.walk import collect

_BFLOAT16 = "bfloat16"


@tvm.transform.module_pass(opt_level=0, name="smartmem.StoreBound")
class StoreBound:
    """Store what a statement gives a name, and makes of bfloat16, in memory of one element.

    Before::

        v: T.let[T.float32] = T.max(best[i], T.Cast("float32", x[i, k]))        # x is bfloat16
        best[i] = v

    After::

        stored = T.alloc_buffer((1,), "float32", scope="local")
        stored[0] = T.max(best[i], T.Cast("float32", x[i, k]))
        best[i] = stored[0]

    TVM 0.27 lowers bfloat16 to the integers of its bits, in the values that are stored but not in those that are named:
    there it casts the bits as if they were a number. Reductions of pairs, as argmax, name theirs. A code generator
    keeps one element in a register.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`."""
        return map_functions(mod, stored)


def stored(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """One PrimFunc; itself if it names nothing that is made of bfloat16."""
    named = [bind.var for bind in collect(func.body, tirx.Bind) if _reads_bfloat16(bind)]
    if not named:
        return func
    buffers = {var: tirx.decl_buffer((1,), var.ty.dtype, var.name, scope="local") for var in named}

    def unnamed(block: tirx.SeqStmt) -> tirx.SeqStmt:
        return tirx.SeqStmt([part for each in block.seq for part in _parts(each, buffers)])

    body = tvm_ffi.structural_map(func.body, (tirx.SeqStmt, unnamed))

    def load(var: tirx.Var):
        return tirx.BufferLoad(buffers[var], [0]) if var in buffers else var

    return func.with_body(tvm_ffi.structural_map(body, (tirx.Var, load)))


def _reads_bfloat16(bind: tirx.Bind) -> bool:
    numbers = [bind.var, *collect(bind.value, (ir.TensorLoad, tirx.Var, tirx.Cast))]
    return any(str(getattr(each.ty, "dtype", "")) == _BFLOAT16 for each in numbers)


def _parts(statement: tirx.Stmt, buffers: dict) -> list[tirx.Stmt]:
    if not isinstance(statement, tirx.Bind) or statement.var not in buffers:
        return [statement]
    buffer = buffers[statement.var]
    return [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, statement.value, [0])]

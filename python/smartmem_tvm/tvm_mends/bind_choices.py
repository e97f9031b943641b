# SPDX-License-Identifier: Apache-2.0
"""BindChoices: the operands of a select are loaded before the select, on CPUs."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..ir.blends import is_blend
from ..ir.index_map import is_if_then_else
from ..ir.map_functions import map_functions
from ..ir.vectorized import without_bindings
from ..ir.walk import contains
from ..target import on_cpu


@tvm.transform.module_pass(opt_level=0, name="smartmem.BindChoices")
class BindChoices:
    """Read what a select chooses between before it, on CPU targets.

    Before::

        y[i] = T.Select(mask[i], x[i], -1e9)

    After::

        read: T.let[T.float32] = x[i]
        y[i] = T.Select(mask[i], read, -1e9)

    TVM lowers a select that reads memory to a branch, as the condition may guard the read. LLVM then loads under a
    mask, or does not vectorize the loop: a mask on attention scores took four times as long. The pass binds operands
    only where the condition guards no read (`ir.blends`), in scheduled kernels.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every scheduled PrimFunc of `mod` if the current target is a CPU."""
        return map_functions(mod, _bound) if on_cpu() else mod


def _bound(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not contains(func.body, tirx.Select, is_blend):
        return func
    apart = without_bindings(func)

    def bound(store: tirx.BufferStore) -> tirx.Stmt:
        return store if store in apart else _stored(store)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, bound)))


def _stored(store: tirx.BufferStore) -> tirx.Stmt:
    """Return a store behind the loads of its selects; the store itself if one of these loads is conditional."""
    if contains(store.value, ir.Call, is_if_then_else):
        return store
    lines: list[tirx.Bind] = []

    def read(load):
        lines.append(tirx.Bind(tirx.Var("read", load.ty.dtype), load))
        return lines[-1].var

    def choose(select):
        if not is_blend(select):
            return select
        values = select.true_value, select.false_value
        return tirx.Select(select.condition, *(tvm_ffi.structural_map(each, (ir.TensorLoad, read)) for each in values))

    value = tvm_ffi.structural_map(store.value, (tirx.Select, choose))
    return tirx.SeqStmt([*lines, tirx.BufferStore(store.buffer, value, store.indices)]) if lines else store

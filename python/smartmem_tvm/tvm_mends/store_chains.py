# SPDX-License-Identifier: Apache-2.0
"""Values that a chain of bindings computes go through local buffers, in kernels that LLVM is about to compile."""

from __future__ import annotations

from functools import partial

import tvm_ffi
from tvm import IRModule, ir, tirx

from ..ir.index_map import is_if_then_else
from ..ir.kernel import substitute
from ..ir.walk import collect, contains, outermost


def with_stored_chains(kernels: IRModule) -> IRModule:
    """Return lowered kernels in which no binding's value contains another binding's value that does so, too.

    Before, with two quantizations in one store::

        y[i] = T.Let(f(a, a), where={a: T.Let(f(b, b), where={b: g(x[i])})})

    After::

        a = T.alloc_buffer((1,), "float32x16");  a[0] = T.Let(f(b, b), where={b: g(x[i])});  y[i] = f(a[0], a[0])

    Work-around: TVM's code generator tells its analyzer of each binding, which puts the value in the variable's place
    and simplifies that. Five quantizations one after the other, as in a quantized GELU, whose bindings are read two
    times each, did not end in ten minutes. LLVM keeps such a buffer in a register.

    Leaves bindings that a condition guards, whose loads may be out of bounds.
    """
    changed = kernels.clone()
    for gvar, func in kernels.functions_items():
        nested = any(contains(let.value, tirx.Let) for let in collect(func.body, tirx.Let))
        chained = collect(func.body, tirx.BufferStore) if nested else []
        split = [(each, _split(each)) for each in chained if _chain(each.value) is not None]
        if split:
            replaced = partial(_replacement, split)
            changed[gvar] = func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, replaced)))
    return changed


def _replacement(split: list, store: tirx.BufferStore) -> tirx.Stmt:
    return next((new for old, new in split if old.same_as(store)), store)


def _split(store: tirx.BufferStore) -> tirx.Stmt:
    """Return the statements that store what bindings compute, and then the rest of the value."""
    parts, value = [], store.value
    while (let := _chain(value)) is not None:
        buffer = tirx.decl_buffer([tirx.const(1, "int64")], str(let.value.ty.dtype), let.var.name)
        place = [tirx.const(0, "int64")]
        parts += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, let.value, place)]
        rest = substitute(let.body, {let.var: buffer[tuple(place)]})
        value = _replaced(value, let, rest)
    return tirx.SeqStmt([*parts, tirx.BufferStore(store.buffer, value, store.indices)])


def _replaced(value: ir.Expr, old: tirx.Let, new: ir.Expr) -> ir.Expr:
    """Return an expression with another one in the place of a binding."""
    return tvm_ffi.structural_map(value, (tirx.Let, lambda let: new if let.var.same_as(old.var) else let))


def _chain(value: ir.Expr) -> tirx.Let | None:
    """Return the first binding to compute whose value contains one, or on whose body such a binding is; else None."""
    for let in _open(value):
        inner = _chain(let.value)
        if inner is not None or contains(let.value, tirx.Let) or _chain(let.body) is not None:
            return let if inner is None else inner
    return None


def _open(value: ir.Expr) -> list[tirx.Let]:
    """Return the bindings that are in no other one, and that no condition guards."""
    found = outermost(value, (tirx.Let, ir.Call), lambda each: isinstance(each, tirx.Let) or is_if_then_else(each))
    return [each for each in found if isinstance(each, tirx.Let)]

# SPDX-License-Identifier: Apache-2.0
"""WrapIntegers: integer arithmetic wraps around on overflow, as in ONNX and numpy, on CPUs."""

from __future__ import annotations

import operator

import tvm
import tvm_ffi
from tvm import sym, tirx

from ..ir.bounds import NO_BOUND
from ..ir.hidden_loads import hide_loads
from ..ir.map_functions import map_functions
from ..ir.walk import contains, loads
from ..target import on_cpu

_BITS = {"int32": 32, "int64": 64, "uint32": 32, "uint64": 64}
_OPERATIONS = {tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul}
_OPERATORS = tuple(_OPERATIONS)


@tvm.transform.module_pass(opt_level=0, name="smartmem.WrapIntegers")
class WrapIntegers:
    """Write sums, differences and products of loaded integers that may go around so that no part of them does.

    Before::

        y[i] = x[i] + b[i]                                                      # int32

    After::

        y[i] = T.Cast("int32", T.Cast("int64", x[i]) + T.Cast("int64", b[i]) ^ 1 ^ 1)

    Those of 64 bits are computed in 128, and LLVM narrows them to an instruction of 64 bits again. Otherwise TVM tells
    LLVM that no number overflows (`nsw` and `nuw`), and LLVM turns ``0 - x`` of unsigned numbers into 0, and
    ``x + 1 > x`` into true. The exclusive or stops TVM's simplifier, which assumes that a value cast to fewer bits
    fits. Left alone are indices, which do not overflow, and the accumulators of reductions, for which there are vector
    instructions. On CPU targets only: kernels for a GPU are C, where unsigned numbers may wrap around, and signed ones
    do.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`, for the current target."""
        return map_functions(mod, wrapped) if on_cpu() else mod


def wrapped(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return one PrimFunc rewritten; itself if no number in it may overflow."""
    if not any("int" in str(load.ty.dtype) for load in loads(func.body)):
        return func
    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, _around))
    return func if body.same_as(func.body) else func.with_body(body)


def _around(store: tirx.BufferStore) -> tirx.BufferStore:
    plain, hidden = hide_loads(store.value)

    def rewrite(node):
        return _wrap(node) if _may_wrap(node, hidden) else node

    kept = _accumulated(plain, store.buffer, hidden)
    new = plain if kept is None else plain.b if kept.same_as(plain.a) else plain.a
    value = tvm_ffi.structural_map(new, (_OPERATORS, rewrite))
    if value.same_as(new):
        return store
    value = value if kept is None else tirx.Add(kept, value)
    value = tvm_ffi.structural_map(value, (tirx.Var, lambda var: hidden.get(var, var)))
    return tirx.BufferStore(store.buffer, value, store.indices)


def _accumulated(value, buffer, hidden: dict) -> tirx.Var | None:
    """Return the operand of a sum that is loaded from the buffer to which the sum is stored."""
    sides = (value.a, value.b) if isinstance(value, tirx.Add) else ()
    return next((side for side in sides if side in hidden and hidden[side].source.same_as(buffer)), None)


def _may_wrap(value, hidden: dict) -> bool:
    dtype = str(value.ty.dtype)
    bits = _BITS.get(dtype)
    if bits is None or not contains(value, tirx.Var, lambda var: var in hidden):
        return False
    analyzer = sym.Analyzer()
    a, b = (analyzer.const_int_bound(each) for each in (value.a, value.b))
    ends = [_OPERATIONS[type(value)](x, y) for x in (a.min_value, a.max_value) for y in (b.min_value, b.max_value)]
    least, most = (0, 1 << bits) if dtype.startswith("u") else (-1 << (bits - 1), 1 << (bits - 1))
    return min(ends) < max(least, -NO_BOUND) or max(ends) >= min(most, NO_BOUND)


def _wrap(value):
    """Return the same number, computed in twice the bits and truncated."""
    dtype = value.ty.dtype
    wide = f"int{2 * _BITS[str(dtype)]}"
    whole, one = type(value)(*(_widened(each, wide) for each in (value.a, value.b))), tirx.const(1, wide)
    return tirx.Cast(dtype, (whole ^ one) ^ one)


def _widened(operand, wide: str):
    if isinstance(operand, tirx.IntImm) and operand.value >= 1 << 63:
        # A constant of TVM holds 64 signed bits; the result is right modulo 2^64, and higher bits are cut off.
        return tirx.const(operand.value - (1 << 64), wide)
    return tirx.Cast(wide, operand)

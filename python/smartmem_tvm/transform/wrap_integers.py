# SPDX-License-Identifier: Apache-2.0
"""WrapIntegers: integers beyond the largest or the smallest of their type go around, as in ONNX and numpy."""

from __future__ import annotations

import operator

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from ..ir.map_functions import map_functions
from ..ir.walk import contains, loads
from ..target import is_cpu

_BITS = {"int32": 32, "int64": 64, "uint32": 32, "uint64": 64}
_OPERATORS = (tirx.Add, tirx.Sub, tirx.Mul)
_UNKNOWN = 1 << 62  # bounds beyond are no bounds


@tvm.transform.module_pass(opt_level=0, name="smartmem.WrapIntegers")
class WrapIntegers:
    """Write sums, differences and products of loaded integers that may go around so that no part of them does.

    Before::

        y[i] = x[i] + b[i]                                                      # int32

    After::

        y[i] = reinterpret("int32", uint32(int64(x[i]) + int64(b[i]) & 0xffffffff))

    and those of 64 bits in 128, of which LLVM makes the instruction of 64 again. TVM tells code generators that no
    number goes around (`nsw` and `nuw` in LLVM, signed numbers in C), and they make 0 of ``0 - x`` of unsigned ones,
    and truth of ``x + 1 > x``. Left alone are indices, which do not go around, and what a reduction has added up until
    then, which vector units are made for. In C, for GPUs, unsigned numbers of the same bits may go around.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`, for the current target."""
        target = tvm.target.Target.current(allow_none=True)
        return map_functions(mod, lambda func: wrapped(func, target is None or is_cpu(target)))


def wrapped(func: tirx.PrimFunc, apart: bool = True) -> tirx.PrimFunc:
    """One PrimFunc; itself if no number in it may go around.

    Parameters
    ----------
    func : tirx.PrimFunc
    apart : bool
        Whether unsigned numbers must not go around either, as in LLVM.
    """
    if not any(str(load.ty.dtype) in _BITS for load in loads(func.body)):
        return func
    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, lambda store: _around(store, apart)))
    return func if body.same_as(func.body) else func.with_body(body)


def _around(store: tirx.BufferStore, apart: bool) -> tirx.BufferStore:
    names: dict[int, tirx.Var] = {}
    hidden: dict[tirx.Var, ir.TensorLoad] = {}

    def hide(load: ir.TensorLoad) -> tirx.Var:  # and the arithmetic of its indices with it
        var = names.setdefault(tvm_ffi.structural_hash(load), tirx.Var("loaded", load.ty))
        hidden[var] = load
        return var

    def rewrite(node):
        left_alone = not apart and str(node.ty.dtype).startswith("u")
        return _wrap(node, apart) if not left_alone and _may_wrap(node, hidden) else node

    plain = tvm_ffi.structural_map(store.value, (ir.TensorLoad, hide), order="pre")
    kept = _accumulated(plain, store.buffer, hidden)
    new = plain if kept is None else plain.b if kept.same_as(plain.a) else plain.a
    value = tvm_ffi.structural_map(new, (_OPERATORS, rewrite))
    if value.same_as(new):
        return store
    value = value if kept is None else tirx.Add(kept, value)
    value = tvm_ffi.structural_map(value, (tirx.Var, lambda var: hidden.get(var, var)))
    return tirx.BufferStore(store.buffer, value, store.indices)


def _accumulated(value, buffer, hidden: dict) -> tirx.Var | None:
    """The operand of a sum that is a number of the buffer that the sum is stored to."""
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
    return min(ends) < max(least, -_UNKNOWN) or max(ends) >= min(most, _UNKNOWN)


def _wrap(value, apart: bool):
    """The same number: the lower half of a result in twice the bits, to which signs of operands do not matter."""
    if isinstance(known := sym.Analyzer().simplify(value), tirx.IntImm):
        return known  # no code generator takes a `reinterpret` of one
    dtype = str(value.ty.dtype)
    bits = _BITS[dtype]
    if apart:
        a, b = (tirx.Cast(f"int{2 * bits}", _read_as(f"int{bits}", each)) for each in (value.a, value.b))
        whole = type(value)(a, b)
        lower = tirx.Cast(f"uint{bits}", whole & tirx.const((1 << 32) - 1, "int64") if bits == 32 else whole)
    else:
        lower = type(value)(*(_read_as(f"uint{bits}", each) for each in (value.a, value.b)))
    return _read_as(dtype, lower)


def _read_as(dtype: str, value: ir.Expr) -> ir.Expr:
    """The same bits as a number with a sign, or without one."""
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tirx.IntImm):
        return tirx.const(int(np.array(value.value).astype(dtype)), dtype)
    return tirx.reinterpret(dtype, value)


_OPERATIONS = {tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul}

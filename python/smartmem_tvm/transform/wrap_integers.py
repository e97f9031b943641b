# SPDX-License-Identifier: Apache-2.0
"""WrapIntegers: integers beyond the largest or the smallest of their type go around, as in ONNX and numpy."""

from __future__ import annotations

import operator

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

        y[i] = x[i] + b[i]                                                      # uint32

    After::

        y[i] = (x[i] & 0x7fffffff) + (b[i] & 0x7fffffff) ^ (x[i] ^ b[i]) & 0x80000000

    (Warren, Hacker's Delight, 2-18), and signed ones as unsigned ones of the same bits. TVM tells code generators that
    no number goes around (`nsw` and `nuw` in LLVM, signed numbers in C), and they make 0 of ``0 - x`` of unsigned ones,
    and truth of ``x + 1 > x``. Left alone are indices, which do not go around, and what a reduction has added up until
    then, which vector units are made for. On GPUs unsigned numbers may go around as they are.
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
        Whether unsigned numbers must not go around either.
    """
    if not any(str(load.ty.dtype) in _BITS for load in loads(func.body)):
        return func
    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, lambda store: _stored(store, apart)))
    return func if body.same_as(func.body) else func.with_body(body)


def _stored(store: tirx.BufferStore, apart: bool) -> tirx.BufferStore:
    hidden: dict[tirx.Var, ir.TensorLoad] = {}

    def hide(load: ir.TensorLoad) -> tirx.Var:  # and the arithmetic of its indices with it
        var = tirx.Var("loaded", load.ty)
        hidden[var] = load
        return var

    def rewrite(node):
        left_alone = not apart and str(node.ty.dtype).startswith("u")
        return _wrap(node, apart) if not left_alone and _may_wrap(node, hidden) else node

    plain = tvm_ffi.structural_map(store.value, (ir.TensorLoad, hide), order="pre")
    if _accumulates(plain, store.buffer, hidden):
        kept, added = (plain.a, plain.b) if plain.a in hidden else (plain.b, plain.a)
        value = tirx.Add(kept, tvm_ffi.structural_map(added, (_OPERATORS, rewrite)))
    else:
        value = tvm_ffi.structural_map(plain, (_OPERATORS, rewrite))
    if not contains(value, tirx.Let):
        return store
    value = tvm_ffi.structural_map(value, (tirx.Var, lambda var: hidden.get(var, var)))
    return tirx.BufferStore(store.buffer, value, store.indices)


def _accumulates(value, buffer, hidden: dict) -> bool:
    """Whether a value is a number of the buffer that it is stored to, plus something."""
    sides = (value.a, value.b) if isinstance(value, tirx.Add) else ()
    return any(hidden[side].source.same_as(buffer) for side in sides if side in hidden)


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
    """The same number, as a `Let`, so that operands are written once."""
    dtype = str(value.ty.dtype)
    unsigned = f"uint{_BITS[dtype]}"
    a, b = tirx.Var("a", unsigned), tirx.Var("b", unsigned)
    result = _WITHOUT_WRAP[type(value)](a, b) if apart else type(value)(a, b)
    result = result if dtype == unsigned else tirx.reinterpret(dtype, result)
    for var, operand in ((b, value.b), (a, value.a)):
        result = tirx.Let(var, operand if dtype == unsigned else _as_unsigned(operand, unsigned), result)
    return result


def _as_unsigned(operand, unsigned: str):
    if isinstance(operand, tirx.IntImm):
        return tirx.const(operand.value % (1 << _BITS[unsigned]), unsigned)
    return tirx.reinterpret(unsigned, operand)


def _upper(a):
    """The highest bit, and a number of all others."""
    bits = _BITS[str(a.ty.dtype)]
    return tirx.const(1 << (bits - 1), a.ty.dtype), tirx.const((1 << (bits - 1)) - 1, a.ty.dtype)


def _sum(a, b):
    upper, others = _upper(a)
    return ((a & others) + (b & others)) ^ ((a ^ b) & upper)


def _difference(a, b):
    upper, others = _upper(a)
    return ((a | upper) - (b & others)) ^ (((a ^ b) & upper) ^ upper)


def _product(a, b):
    """In 64 bits; those of 64 bits by halves, of which the product of the upper ones goes around altogether."""
    lower, half = tirx.const((1 << 32) - 1, "uint64"), tirx.const(32, "uint64")
    if str(a.ty.dtype) == "uint32":
        return tirx.Cast("uint32", tirx.Cast("uint64", a) * tirx.Cast("uint64", b) & lower)
    mixed = ((a >> half) * (b & lower) & lower) + ((a & lower) * (b >> half) & lower)
    return _sum((a & lower) * (b & lower), (mixed & lower) << half)


_OPERATIONS = {tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul}
_WITHOUT_WRAP = {tirx.Add: _sum, tirx.Sub: _difference, tirx.Mul: _product}

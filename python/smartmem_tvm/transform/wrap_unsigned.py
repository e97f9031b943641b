# SPDX-License-Identifier: Apache-2.0
"""WrapUnsigned: unsigned numbers below 0 and beyond their largest go around, as in ONNX and C."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from ..ir.map_functions import map_functions
from ..ir.walk import collect
from ..target import is_cpu

_BITS = {"uint32": 32, "uint64": 64}
_OPERATORS = (tirx.Add, tirx.Sub, tirx.Mul)
_SHORT = 64  # nodes of an expression
_MOST, _ONE = tirx.const((1 << 64) - 1, "uint64"), tirx.const(1, "uint64")


@tvm.transform.module_pass(opt_level=0, name="smartmem.WrapUnsigned")
class WrapUnsigned:
    """Write sums, differences and products of unsigned numbers that may go around so that no part of them does.

    Before::

        a - b                                               # uint64

    After::

        select(b <= a, a - b, 2**64 - 1 - (b - a) + 1)

    and those of 32 bits in 64. On CPU targets. TVM tells LLVM that no such number goes around, and LLVM makes 0 of
    ``0 - x``, which is the only number that this may be then.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`, for the current target."""
        target = tvm.target.Target.current(allow_none=True)
        return map_functions(mod, wrapped) if target is not None and is_cpu(target) else mod


def wrapped(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """One PrimFunc; itself if no unsigned number in it may go around."""
    if not any(map(_may_wrap, collect(func.body, _OPERATORS))):
        return func
    callbacks = tuple((kind, lambda each: _wrap(each) if _may_wrap(each) else each) for kind in _OPERATORS)
    return func.with_body(tvm_ffi.structural_map(func.body, callbacks))


def _may_wrap(value) -> bool:
    bits = _BITS.get(str(value.ty.dtype))
    if bits is None:
        return False
    analyzer = sym.Analyzer()
    a, b = (analyzer.const_int_bound(each) for each in (value.a, value.b))
    if isinstance(value, tirx.Sub):
        return a.min_value < b.max_value
    most = a.max_value + b.max_value if isinstance(value, tirx.Add) else a.max_value * b.max_value
    return most >= 1 << min(bits, 62)


def _wrap(value):
    a, b = value.a, value.b
    if str(value.ty.dtype) == "uint32":
        wide, around = tirx.Cast("uint64", a), tirx.const(1 << 32, "uint64")
        wide = wide + around if isinstance(value, tirx.Sub) else wide
        cut = type(value)(wide, tirx.Cast("uint64", b)) & tirx.const((1 << 32) - 1, "uint64")
        return tirx.Cast("uint32", cut)
    if len(collect(value, ir.Expr)) > _SHORT:
        return value  # both are written twice, and so is what is in them
    if isinstance(value, tirx.Mul):
        return _product(a, b)
    return _sum(a, b) if isinstance(value, tirx.Add) else tirx.Select(b <= a, a - b, _MOST - (b - a) + _ONE)


def _sum(a, b):
    return tirx.Select(b <= _MOST - a, a + b, a - (_MOST - b) - _ONE)


def _product(a, b):
    """By halves: the product of the upper ones goes around altogether."""
    lower, half = tirx.const((1 << 32) - 1, "uint64"), tirx.const(32, "uint64")
    mixed = ((a >> half) * (b & lower) & lower) + ((a & lower) * (b >> half) & lower)
    return _sum((a & lower) * (b & lower), (mixed & lower) << half)

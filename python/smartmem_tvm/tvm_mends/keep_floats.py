# SPDX-License-Identifier: Apache-2.0
"""KeepFloats: hide float arithmetic that TVM would simplify as if floats were real numbers."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from .._tvm import mapped
from ..ir.hidden_loads import hide_loads
from ..ir.map_functions import map_functions
from ..ir.recent import Recent
from ..ir.walk import collect, contains

_ORDERS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_EQUALITIES = (tirx.EQ, tirx.NE)
_CONNECTIVES = (tirx.And, tirx.Or)
_KINDS = (tirx.Sub, tirx.Div, tirx.Not, *_EQUALITIES, *_CONNECTIVES)
_hashes = Recent(1024)  # hashes of loads and constants: a nested expression asks for them at each level


@tvm.transform.module_pass(opt_level=0, name="smartmem.KeepFloats")
class KeepFloats:
    """Write what TVM's simplifier would change of rounded, infinite or no numbers so that it does not see it.

    Before::

        y[i] = x[i] + b[i] - x[i]                   # b[i], without the rounding of the sum; also of infinite x[i]
        z[i] = x[i] == x[i]                         # True, also of NaN
        w[i] = not x[i] < b[i]                      # b[i] <= x[i], False of NaN

    After::

        y[i] = x[i] + b[i] + x[i] * -1.0
        z[i] = not T.isnan(x[i])
        w[i] = T.Cast("int32", x[i] < b[i]) == 0

    Code generators make the same instructions of both. An expression that the simplifier leaves alone stays as it is.
    For scheduled kernels, before TVM lowers them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`, scheduled or not."""
        return map_functions(mod, kept)


def kept(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return one PrimFunc with such arithmetic hidden; itself if TVM changes none of its numbers."""
    body = mapped(func.body, (_KINDS, _kept))
    return func if body.same_as(func.body) else func.with_body(body)


def _kept(node: ir.Expr) -> ir.Expr:
    if isinstance(node, tirx.Sub):
        return node.a + node.b * tirx.const(-1.0, node.ty.dtype) if _is_float(node) and _cancels(node) else node
    if isinstance(node, tirx.Div):
        return _quotient_of_zero(node) if _is_float(node) and _is_zero(node.a) else node
    if isinstance(node, tirx.Not):
        return _negated(node)
    if isinstance(node, _EQUALITIES):
        return _equality(node)
    both_compare = all(contains(side, (*_ORDERS, *_EQUALITIES), _of_floats) for side in (node.a, node.b))
    return type(node)(node.a, _hidden(node.b) > 0) if both_compare and _simplifies(node) else node


def _is_float(expr: ir.Expr) -> bool:
    return str(expr.ty.dtype) in ("float16", "bfloat16", "float32", "float64")


def _of_floats(comparison) -> bool:
    return _is_float(comparison.a)


def _is_zero(expr: ir.Expr) -> bool:
    return isinstance(expr, tirx.FloatImm) and expr.value == 0


def _cancels(difference: tirx.Sub | tirx.EQ | tirx.NE) -> bool:
    """Whether both sides share an operand, and the simplifier cancels it."""
    return not _operands(difference.a).isdisjoint(_operands(difference.b)) and _simplifies(difference)


def _operands(expr: ir.Expr) -> set[int]:
    """Return hashes of the loads and constants in an expression."""
    found = (each for each in collect(expr, (ir.TensorLoad, tirx.FloatImm)) if not _is_zero(each))
    return {_hashes.get(each, lambda each=each: tvm_ffi.structural_hash(each)) for each in found}


def _simplifies(expr) -> bool:
    """Whether the simplifier changes the root of a binary expression, and not only its operands."""
    plain, _ = hide_loads(expr)  # changes within indices do not count
    analyzer = sym.Analyzer()
    alone = type(plain)(analyzer.simplify(plain.a), analyzer.simplify(plain.b))
    return not tvm_ffi.structural_equal(analyzer.simplify(plain), alone, map_free_vars=False)


def _hidden(condition: ir.Expr) -> ir.Expr:
    """Return a condition as a comparison of an integer, which the simplifier leaves alone."""
    return tirx.Cast("int32", condition)


def _negated(node: tirx.Not) -> ir.Expr:
    if str(node.ty.dtype) == "bool" and contains(node.a, _ORDERS, _of_floats):
        return tirx.EQ(_hidden(node.a), tirx.const(0, "int32"))
    return node


def _equality(node: tirx.EQ | tirx.NE) -> ir.Expr:
    if not _is_float(node.a) or not _cancels(node):
        return node
    no_number = tirx.any(tirx.isnan(node.a), tirx.isnan(node.b))
    return tirx.Not(no_number) if isinstance(node, tirx.EQ) else no_number


def _quotient_of_zero(node: tirx.Div) -> ir.Expr:
    dtype = node.ty.dtype
    undefined = tirx.any(tirx.EQ(node.b, tirx.const(0.0, dtype)), tirx.isnan(node.b))
    return tirx.Select(undefined, tirx.const(float("nan"), dtype), tirx.const(0.0, dtype))

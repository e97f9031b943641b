# SPDX-License-Identifier: Apache-2.0
"""VectorizeMath: exp, erf, tanh, sigmoid, isnan and rounding in a form that LLVM vectorizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import tvm
import tvm_ffi
from tvm import ir, te, tirx, topi

from ...ir.index_map import is_if_then_else
from ...ir.kernel import parse, substitute
from ...ir.map_functions import map_functions
from ...ir.vectorized import without_bindings
from ...ir.walk import collect, contains
from ...target import on_cpu

_LEAVES = (tirx.Var, tirx.IntImm, tirx.FloatImm, ir.Op)

# Cephes' expf: exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2) / 2.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG2_E, _LN_2 = 1.44269504088896341, 0.6931471805599453


def _exp(x):
    """Return exp as topi computes it, but correct up to the largest float32.

    2^128 is no float32 but exp(88.5) is one, so the result is computed as twice the formula times 2^(n - 1).
    """

    def of(number):
        # min and max return their second operand if one is NaN, so a NaN survives the clamp
        inside = tirx.max(_float(-87.33), tirx.min(_float(89.0), number))
        n = tirx.floor(inside * _float(_LOG2_E) + _float(0.5))
        r = inside + n * _float(-_LN_2)
        p = _float(2 * _EXP[0])
        for coefficient in _EXP[1:]:
            p = p * r + _float(2 * coefficient)
        half_power = tirx.reinterpret("float32", (n.astype("int32") + 126) << 23)
        return (p * r * r + (_float(2.0) * r + _float(2.0))) * half_power

    return te.compute(x.shape, lambda i: of(x[i]))


def _float(value: float):
    return tirx.const(value, "float32")


def _sigmoid(x):
    return te.compute(x.shape, lambda i: _float(0.5) * topi.fast_tanh(_half(x))[i] + 0.5)


def _isnan(x):
    """Compare bits: TVM simplifies ``x != x`` away, and calls its own `isnan` lane by lane."""
    largest, sign = tirx.const(0x7F800000, "int32"), tirx.const(0x7FFFFFFF, "int32")
    return te.compute(x.shape, lambda i: (tirx.reinterpret("int32", x[i]) & sign) > largest)


def _half(x):
    return te.compute(x.shape, lambda i: x[i] * _float(0.5))


# Nodes of the largest call that is replaced where its operand cannot be bound to a variable. A formula reads its
# operand a dozen times, so code would grow seventeenfold with each nested function; the third waits until its kernel
# is scheduled.
_LARGEST = 2**9

# Rounding to integers, ties to even: LLVM's vector function, of which TVM knows the scalar form only.
_ROUND, _LLVM_ROUND, _ROUNDED_TYPES = "tirx.nearbyint", "llvm.nearbyint", ("float32", "float64")

# Absolute error against float64 over [-20, 20], measured by the test: exp 2e-7 relative, the others under 5e-7.
APPROXIMATIONS = {
    "tirx.exp": _exp,
    "tirx.erf": topi.fast_erf,
    "tirx.tanh": topi.fast_tanh,
    "tirx.sigmoid": _sigmoid,
    "tirx.isnan": _isnan,
}


@tvm.transform.module_pass(opt_level=0, name="smartmem.VectorizeMath")
class VectorizeMath:
    """Replace scalar library calls by polynomials, on CPU targets.

    Before::

        y[i] = T.erf(x[i])              # one libm call per element

    After::

        y[i] = (clamped polynomial in x[i]) / (polynomial in x[i])

    LLVM has no vector form of these functions: a loop that calls them stays scalar (6.8 ms against 0.09 ms for one erf
    of Swin-T). The formulas are Cephes', mostly as topi has them. Only calls of float32 are replaced; other targets
    have the functions in hardware.

    ``nearbyint`` of a quantization becomes a call of LLVM's function, in scheduled kernels: TVM makes a scalar loop of
    a vector of calls that it does not know as vectors, and LLVM's loops over it gather and scatter. Rules know the
    function by TVM's name.

    In scheduled kernels, an operand that a formula reads several times is bound to a variable before the store. In
    unscheduled kernels there are no such variables, as schedule rules would not recognise them; there the outer ones
    of nested functions may stay calls.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod` if the current target is a CPU."""
        return map_functions(mod, _approximated) if on_cpu() else mod


def _approximated(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if "tirx.is_scheduled" in (func.attrs or {}):
        func = func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _rounded_in_vectors)))
        apart = without_bindings(func, _has_formula)
        body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, lambda store: _stored(store, store in apart)))
    else:
        body = tvm_ffi.structural_map(func.body, (ir.Call, _approximate))
    return func if body.same_as(func.body) else func.with_body(body)


def _rounded_in_vectors(call: ir.Call) -> ir.Call:
    if getattr(call.op, "name", "") != _ROUND or (dtype := str(call.ty.dtype)) not in _ROUNDED_TYPES:
        return call
    return tirx.call_llvm_pure_intrin(dtype, _LLVM_ROUND, call.args[0])


def _has_formula(call: ir.Call) -> bool:
    return getattr(call.op, "name", "") in APPROXIMATIONS and str(call.args[0].ty.dtype) == "float32"


def _stored(store: tirx.BufferStore, apart: bool) -> tirx.Stmt:
    """Return a store behind the variables that formulas read several times, which keeps nested functions small.

    There are no variables where TVM takes the store out of its loop (`apart`), nor where a condition decides whether
    a value is computed.
    """
    lines: list[tirx.Bind] = []

    def bind(name: str, value):
        if isinstance(value, _LEAVES):
            return value
        var = tirx.Var(name, value.ty.dtype)
        lines.append(tirx.Bind(var, value))
        return var

    lazy = apart or contains(store.value, ir.Call, is_if_then_else)
    value = tvm_ffi.structural_map(store.value, (ir.Call, lambda call: _approximate(call, None if lazy else bind)))
    if value.same_as(store.value):
        return store
    stored = tirx.BufferStore(store.buffer, value, store.indices)
    return tirx.SeqStmt([*lines, stored]) if lines else stored


def _approximate(call, bind: Callable | None = None):
    name = getattr(call.op, "name", "")
    if not _has_formula(call):
        return call
    if bind is None and len(collect(call, ir.Expr)) > _LARGEST:
        return call
    formula = _formula(name)
    bind = bind or (lambda _, value: value)
    known = {formula.operand: bind("x", call.args[0])}
    for var, value in formula.lines:
        known[var] = bind(var.name, substitute(value, known))
    return substitute(formula.result, known)


@dataclass(frozen=True)
class _Formula:
    """A function of `operand`: the variables that are read several times, and the result."""

    operand: tirx.Var
    lines: tuple[tuple[tirx.Var, ir.Expr], ...]
    result: ir.Expr


@cache
def _formula(name: str) -> _Formula:
    x = te.placeholder((1,), "float32", name="x")
    kernel = parse(te.create_prim_func([x, APPROXIMATIONS[name](x)]))
    stages = list(kernel.stages)
    value = stages[-1].body.value
    for stage in reversed(stages[:-1]):
        out = stage.outputs[0]
        value = tvm_ffi.structural_map(
            value, (ir.TensorLoad, lambda ld, o=out, s=stage: s.body.value if ld.source.same_as(o) else ld)
        )
    operand = tirx.Var("x", "float32")
    return _with_lines(operand, tvm_ffi.structural_map(value, (ir.TensorLoad, lambda _: operand)))


def _with_lines(operand: tirx.Var, value: ir.Expr) -> _Formula:
    named: dict[tvm_ffi.StructuralKey, tirx.Var] = {}
    lines: list[tuple[tirx.Var, ir.Expr]] = []

    def name(node):
        if isinstance(node, _LEAVES):
            return node
        key = tvm_ffi.StructuralKey(node)
        if key not in named:
            named[key] = tirx.Var(f"t{len(lines)}", node.ty.dtype)
            lines.append((named[key], node))
        return named[key]

    tvm_ffi.structural_map(value, (ir.Expr, name))
    uses = Counter(var for _, line in lines for var in collect(line, tirx.Var))
    kept, known = [], {}
    for var, line in lines:
        line = substitute(line, known)
        if uses[var] > 1:
            kept.append((var, line))
        else:
            known[var] = line
    return _Formula(operand, tuple(kept), known[lines[-1][0]])

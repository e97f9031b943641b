# SPDX-License-Identifier: Apache-2.0
"""NativeFunctions: exp, erf, tanh and the like in the instructions that a phone's GPU has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx

from ...ir import native_formulas
from ...ir.half import FLOAT, HALF
from ...ir.index_map import function_name
from ...ir.map_functions import map_functions
from ...ir.walk import contains
from ...tables.functions import LIBRARY, formula_of
from ...target import Limits, is_gpu

_LEAVES = (tirx.Var, tirx.FloatImm)


@tvm.transform.module_pass(opt_level=0, name="smartmem.NativeFunctions")
class NativeFunctions:
    """Replace calls of OpenCL's library by the formulas of `tables.functions`, in scheduled kernels for phones.

    Before, of float16::

        y[i] = x[i] * (0.5 + T.erf(x[i] * 0.7071) * 0.5)       # 143 instructions of an Adreno

    After::

        y[i] = x[i] * half(native_recip(native_exp2(z * q(z * z)) + 1))       # of float32; z = float(x[i] * 0.7071)

    OpenCL's functions are exact to a few units in the last place over all numbers, and are many instructions and
    branches for it. The special unit has powers of two, logarithms and reciprocals as one instruction each. Other
    targets keep the calls: their drivers make short code of them, or their special units are unknown.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod` if the current target is a phone's GPU."""
        return map_functions(mod, _rewritten) if _on_phone() else mod


def _on_phone() -> bool:
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and is_gpu(target) and Limits.of(target).phone


def _rewritten(func: tirx.PrimFunc) -> tirx.PrimFunc:
    body = func.body
    if contains(body, ir.Call, _is_erf):
        body = tvm_ffi.structural_map(body, (tirx.Add, _with_cdf))
    body = tvm_ffi.structural_map(body, [(ir.Call, _native), (tirx.Cast, _rounded_quotient)])
    return func if body.same_as(func.body) else func.with_body(body)


def _native(call: ir.Call) -> ir.Expr:
    """Return a call as its formula, if the table has one."""
    name, dtype = function_name(call), _dtype(call)
    formula = formula_of(name, dtype)
    if formula == LIBRARY:
        return call
    if name != "pow":
        return _computed(getattr(native_formulas, formula), call.args[0], dtype)
    base, exponent = call.args
    if not isinstance(exponent, tirx.FloatImm) or float(exponent.value).is_integer():
        return call
    number = float(np.dtype(dtype).type(exponent.value))  # TVM keeps more digits of a constant than its type has
    return _computed(lambda x, do: native_formulas.power(x, number, do), base, dtype)


def _with_cdf(add: tirx.Add) -> ir.Expr:
    """Return ``0.5 + 0.5 erf(x)`` or ``1 + erf(x)``, as a GELU has it, by the formula of ``normal_cdf``."""
    dtype = _dtype(add)
    formula = formula_of("normal_cdf", dtype)
    if formula == LIBRARY:
        return add
    number, other = (add.a, add.b) if isinstance(add.a, tirx.FloatImm) else (add.b, add.a)
    scale, call = _scaled(other)
    if not isinstance(number, tirx.FloatImm) or scale != number.value or not _is_erf(call):
        return add
    cdf = getattr(native_formulas, formula)
    return _computed(lambda x, do: _times(cdf(x, do), 2 * scale), call.args[0], dtype)


def _is_erf(value: ir.Expr) -> bool:
    return isinstance(value, ir.Call) and function_name(value) == "erf"


def _scaled(value: ir.Expr) -> tuple[float, ir.Expr]:
    """Return a product's constant factor and its other one; 1 and the value itself if it has none."""
    if isinstance(value, tirx.Mul):
        for number, other in ((value.a, value.b), (value.b, value.a)):
            if isinstance(number, tirx.FloatImm):
                return float(number.value), other
    return 1.0, value


def _times(value: ir.Expr, scale: float) -> ir.Expr:
    return value if scale == 1 else value * scale


def _rounded_quotient(cast: tirx.Cast) -> ir.Expr:
    """Return a quotient of floats that is rounded to a half, by the formula of ``divide``."""
    quotient = cast.value
    if _dtype(cast) != HALF or not isinstance(quotient, tirx.Div) or _dtype(quotient) != FLOAT:
        return cast
    formula = formula_of("divide", HALF)
    if formula == LIBRARY or isinstance(quotient.b, tirx.FloatImm):
        return cast
    return tirx.Cast(HALF, getattr(native_formulas, formula)(quotient.a, quotient.b, Native()))


def _computed(formula: Callable, x: ir.Expr, dtype: str) -> ir.Expr:
    """Return a formula of one number, computed in float32."""
    do = Native()
    value = do.bound(x.astype(FLOAT), lambda x: formula(x, do))
    return value if dtype == FLOAT else tirx.Cast(dtype, value)


def _dtype(value: ir.Expr) -> str:
    return str(value.ty.dtype) if isinstance(value.ty, ir.PrimType) else ""


class Native:
    """`native_formulas.Arithmetic` in TIR."""

    def exp2(self, x: ir.Expr) -> ir.Expr:
        """Return ``native_exp2``."""
        return tirx.call_intrin(FLOAT, "tirx.native_exp2", x)

    def log2(self, x: ir.Expr) -> ir.Expr:
        """Return ``native_log2``."""
        return tirx.call_intrin(FLOAT, "tirx.native_log2", x)

    def reciprocal(self, x: ir.Expr) -> ir.Expr:
        """Return ``native_recip``."""
        return tirx.call_intrin(FLOAT, "tirx.native_recip", x)

    def magnitude(self, x: ir.Expr) -> ir.Expr:
        """Return ``fabs``."""
        return tirx.abs(x)

    def choose(self, condition: ir.Expr, yes: ir.Expr | float, no: ir.Expr | float) -> ir.Expr:
        """Return a choice of two values that are both computed."""
        yes, no = (tirx.const(each, FLOAT) if isinstance(each, float) else each for each in (yes, no))
        return tirx.Select(condition, yes, no)

    def bound(self, value: ir.Expr, use: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
        """Return ``use(value)`` with a variable for the value.

        A statement before the store would hide the store from `StageTexels`, which reads loops of one.
        """
        if isinstance(value, _LEAVES):
            return use(value)
        var = tirx.Var("x", FLOAT)
        return tirx.Let(var, value, use(var))

# SPDX-License-Identifier: Apache-2.0
"""Accurate single-precision functions on CUDA, where TVM compiles with ``--use_fast_math``.

That flag turns ``powf(x, y)`` into ``exp2(y * log2(x))``, which is NaN for x < 0 and for pow(0, 0), ``tanhf`` into an
instruction with an error of 5e-4, and ``sinf`` into one that is far off for large numbers. `exp`, divisions and roots
stay fast: they lose only a few bits. A quotient that is rounded to an integer has all of them: quantizing would take
the other side of a tie.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

# TVM's operator -> number of arguments. NVIDIA's device library has functions of these names, and the flag does not
# replace calls of them.
_ARGUMENTS = {"pow": 2, "tanh": 1, "sin": 1, "cos": 1, "tan": 1, "log": 1}
_OPERATORS = {ir.Op.get(f"tirx.{name}"): name for name in _ARGUMENTS}
_NEAREST = ir.Op.get("tirx.nearbyint")
_QUOTIENT = "fdiv_rn"


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.LeaveFastMath")
class LeaveFastMath:
    """Call functions of NVIDIA's device library where fast math would be wrong.

    Before::

        T.tanh(x[i])                    # of float32, or a shorter type

    After::

        T.call_pure_extern("float32", "__nv_tanhf", x[i])

    `with_declarations` declares what is called.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel."""
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _accurate)))


def _name(function: str) -> str:
    return f"__nv_{function}f"


def _accurate(call: ir.Call) -> ir.Expr:
    """Return the call of the device library's function, also for shorter types; the flag does not affect doubles."""
    if call.op.same_as(_NEAREST):
        return _of_exact_quotient(call)
    function, dtype = _OPERATORS.get(call.op), str(call.ty.dtype) if isinstance(call.ty, ir.PrimType) else ""
    if function is None or dtype.startswith("float64"):
        return call
    _, _, lanes = dtype.partition("x")
    wide = f"float32x{lanes}" if lanes else "float32"
    return tirx.call_pure_extern(wide, _name(function), *(arg.astype(wide) for arg in call.args)).astype(dtype)


def _of_exact_quotient(call: ir.Call) -> ir.Expr:
    """Return a rounding whose argument, if it is a quotient of float32, is divided to the last bit."""
    (value,) = call.args
    dtype = str(value.ty.dtype)
    if not isinstance(value, tirx.Div) or not dtype.startswith("float32"):
        return call
    quotient = tirx.call_pure_extern(dtype, f"__nv_{_QUOTIENT}", value.a, value.b)
    return tirx.call_intrin(dtype, call.op, quotient)


def with_declarations(source: str) -> str:
    """Return CUDA source with declarations of the device library's functions that it calls."""
    known = {**{_name(function): count for function, count in _ARGUMENTS.items()}, f"__nv_{_QUOTIENT}": 2}
    called = {name: count for name, count in known.items() if f"{name}(" in source}
    stated = [f'extern "C" __device__ float {name}({", ".join(["float"] * n)});\n' for name, n in called.items()]
    return "".join(stated) + source

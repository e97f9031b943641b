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

from ..ir.index_map import function_name
from ..ir.quantizations import Quantization, by_one_scale
from ..ir.walk import collect, loads

# TVM's operator -> number of arguments. NVIDIA's device library has functions of these names, and the flag does not
# replace calls of them.
_ARGUMENTS = {"pow": 2, "tanh": 1, "sin": 1, "cos": 1, "tan": 1, "log": 1, "fma": 3}
_OPERATORS = {ir.Op.get(f"tirx.{name}"): name for name in _ARGUMENTS}
_NEAREST = ir.Op.get("tirx.nearbyint")
_QUOTIENT = "__nv_fdiv_rn"


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
        once = _Once(func)
        return func.with_body(
            once.around(tvm_ffi.structural_map(func.body, (ir.Call, lambda call: _accurate(call, once))))
        )


class _Once:
    """Inverses of scales, which are the same for all results of a kernel: each thread computes them once.

    nvcc would compute them again for each result, as instructions of PTX that may write memory stand between these.
    """

    def __init__(self, func: tirx.PrimFunc):
        self.written = {store.buffer for store in collect(func.body, tirx.BufferStore)}
        self.known: dict = {}

    def value(self, number):
        """Return the variable of a number; the number itself if it may differ."""
        read = {load.source for load in loads(number)}  # a buffer is a variable, too
        if set(collect(number, tirx.Var)) - read or read & self.written:
            return number
        key = tvm_ffi.StructuralKey(number)
        if key not in self.known:
            self.known[key] = tirx.Var(f"inverse_{len(self.known)}", number.ty.dtype), number
        return self.known[key][0]

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return a kernel's statement, with the variables bound inside of its threads."""
        if not self.known:
            return body
        if isinstance(body, tirx.AttrStmt) and body.attr_key == "thread_extent":
            return tirx.AttrStmt(body.node, body.attr_key, body.value, self.around(body.body))
        if isinstance(body, tirx.SeqStmt) and isinstance(body.seq[0], tirx.DeclBuffer):
            first = next(n for n, each in enumerate(body.seq) if not isinstance(each, tirx.DeclBuffer))
            rest = list(body.seq[first:])
            return tirx.SeqStmt([*body.seq[:first], self.around(tirx.SeqStmt(rest) if rest[1:] else rest[0])])
        return tirx.SeqStmt([*(tirx.Bind(var, value) for var, value in self.known.values()), body])


def _name(function: str) -> str:
    return f"__nv_{function}f"


def _accurate(call: ir.Call, once: _Once) -> ir.Expr:
    """Return the call of the device library's function, also for shorter types; the flag does not affect doubles."""
    if call.op.same_as(_NEAREST):
        return _rounded_quotient(call)
    if _is_inverse(call):
        return once.value(call)
    function, dtype = _OPERATORS.get(call.op), str(call.ty.dtype) if isinstance(call.ty, ir.PrimType) else ""
    if function is None or dtype.startswith("float64"):
        return call
    _, _, lanes = dtype.partition("x")
    wide = f"float32x{lanes}" if lanes else "float32"
    return tirx.call_pure_extern(wide, _name(function), *(arg.astype(wide) for arg in call.args)).astype(dtype)


def _rounded_quotient(call: ir.Call) -> ir.Expr:
    """Return a rounding whose argument, if it is a quotient of float32, is divided to the last bit."""
    (value,) = call.args
    dtype = str(value.ty.dtype)
    if not isinstance(value, tirx.Div) or not dtype.startswith("float32"):
        return call
    return tirx.call_intrin(dtype, call.op, tirx.call_pure_extern(dtype, _QUOTIENT, value.a, value.b))


def _is_inverse(call: ir.Call) -> bool:
    if function_name(call) != "call_pure_extern" or getattr(call.args[0], "value", None) != _QUOTIENT:
        return False
    return isinstance(call.args[1], tirx.FloatImm)


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.QuantizeInVectors")
class QuantizeInVectors:
    """Write the quantization of a vector of numbers as arithmetic, which CUDA has for vectors.

    Before::

        T.Cast("int32", T.min(T.max(T.nearbyint(x[i] / s[0]) + T.Cast("float32", z[0]), 0.0), 255.0))

    After, with ``r = 1 / s[0]``, ``q = clip(x[i] * r)`` and ``e = fma(fma(-q, s[0], x[i]), r, q)``::

        T.reinterpret("int32", T.min(T.max(e, 0.0 - z), 255.0 - z) + 12582912.0) - (1262485504 - z)

    A rounding is a call, of which TVM makes a serial loop, and conversions take two to eight times as long as sums.
    Bounds come before the rounding, which is the addition of 1.5 * 2**23: it leaves an integer in the last bits. The
    correction `e` gives a quotient its last bit: equal to a division for 20 million numbers drawn, also those at ties
    (2026-11-29). `q` is within 2**20, which is beyond all bounds, so that infinite numbers stay so.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one function."""
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Cast, _quantized)))


def _quantized(cast: tirx.Cast) -> ir.Expr:
    quantization = Quantization.of(cast)
    value = None if quantization is None else _corrected(quantization.value)
    if value is None:
        return cast
    low, high = quantization.ends
    return quantization.integer(tirx.Min(tirx.Max(value, low), high))


def _corrected(value):
    """Return a quotient by the only number of a tensor; any other value but a quotient as it is, else None."""
    if not isinstance(value, tirx.Div):
        return value
    parts = by_one_scale(value)
    if parts is None:
        return None
    dividend, scale = parts
    inverse = tirx.call_pure_extern("float32", _QUOTIENT, tirx.const(1, "float32"), scale)
    given, near = tirx.Var("dividend", "float32"), tirx.Var("near", "float32")
    most = tirx.const(float(1 << 20), "float32")
    product = tirx.Min(tirx.Max(given * inverse, tirx.const(-float(1 << 20), "float32")), most)
    rest = tirx.call_intrin("float32", "tirx.fma", tirx.const(0, "float32") - near, scale, given)
    exactly = tirx.call_intrin("float32", "tirx.fma", rest, inverse, near)
    return tirx.Let(given, dividend, tirx.Let(near, product, exactly))


def with_declarations(source: str) -> str:
    """Return CUDA source with declarations of the device library's functions that it calls."""
    known = {**{_name(function): count for function, count in _ARGUMENTS.items()}, _QUOTIENT: 2}
    called = {name: count for name, count in known.items() if f"{name}(" in source}
    stated = [f'extern "C" __device__ float {name}({", ".join(["float"] * n)});\n' for name, n in called.items()]
    return "".join(stated) + source

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

from ..ir.walk import collect, loads

# TVM's operator -> number of arguments. NVIDIA's device library has functions of these names, and the flag does not
# replace calls of them.
_ARGUMENTS = {"pow": 2, "tanh": 1, "sin": 1, "cos": 1, "tan": 1, "log": 1}
_OPERATORS = {ir.Op.get(f"tirx.{name}"): name for name in _ARGUMENTS}
_NEAREST = ir.Op.get("tirx.nearbyint")
_QUOTIENT = "fdiv_rn"
_ROUNDING, _ROUNDING_BITS = 12582912.0, 0x4B400000
"""1.5 * 2**23, to which an addition rounds to the nearest integer, and its bits: by definition of IEEE 754."""


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
        body = tvm_ffi.structural_map(func.body, (tirx.Cast, lambda cast: _quantized(cast, once)))
        return func.with_body(once.around(tvm_ffi.structural_map(body, (ir.Call, _accurate))))


class _Once:
    """Numbers that are the same for all results of a kernel, which each thread computes once.

    nvcc computes them again for each result, as instructions of PTX that may write memory stand between these.
    """

    def __init__(self, func: tirx.PrimFunc):
        self.written = {store.buffer for store in collect(func.body, tirx.BufferStore)}
        self.known: dict = {}

    def value(self, number):
        """Return the variable of a number; the number itself if it differs, or may."""
        inner = number.value if isinstance(number, tirx.Broadcast) else number
        read = {load.source for load in loads(inner)}  # a buffer is a variable, too
        if set(collect(inner, tirx.Var)) - read or read & self.written:
            return number
        key = tvm_ffi.StructuralKey(inner)
        if key not in self.known:
            self.known[key] = tirx.Var(f"known_{len(self.known)}", inner.ty.dtype), inner
        var = self.known[key][0]
        return tirx.Broadcast(var, number.lanes) if isinstance(number, tirx.Broadcast) else var

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


def _accurate(call: ir.Call) -> ir.Expr:
    """Return the call of the device library's function, also for shorter types; the flag does not affect doubles."""
    if call.op.same_as(_NEAREST):
        return _rounded_quotient(call)
    function, dtype = _OPERATORS.get(call.op), str(call.ty.dtype) if isinstance(call.ty, ir.PrimType) else ""
    if function is None or dtype.startswith("float64"):
        return call
    _, _, lanes = dtype.partition("x")
    wide = f"float32x{lanes}" if lanes else "float32"
    return tirx.call_pure_extern(wide, _name(function), *(arg.astype(wide) for arg in call.args)).astype(dtype)


def _rounded_quotient(call: ir.Call) -> ir.Expr:
    """Return a rounding whose argument, if it is a quotient of float32, is divided to the last bit."""
    (value,) = call.args
    quotient = _exact(value)
    return call if quotient is None else tirx.call_intrin(value.ty.dtype, call.op, quotient)


def _exact(value) -> ir.Expr | None:
    """Return a quotient of float32 to the last bit; None for anything else."""
    dtype = str(value.ty.dtype)
    if not isinstance(value, tirx.Div) or not dtype.startswith("float32"):
        return None
    return tirx.call_pure_extern(dtype, f"__nv_{_QUOTIENT}", value.a, value.b)


def _quantized(cast: tirx.Cast, once: _Once) -> ir.Expr:
    """Return ``int(clip(nearbyint(q) + zero, low, high))`` with few instructions; any other cast as it is.

    ``clip(q, low - zero, high - zero)`` is rounded by the addition of 1.5 * 2**23, which leaves an integer in the last
    bits: a conversion takes as long as two to eight additions. A quotient gets its last bit from one correction of the
    product with the inverse, which is the same for all results: equal to a division for 20 million numbers drawn, also
    those at ties (2026-11-29). Beyond 2**20 the product stands for it, as bounds come after.
    """
    dtype = str(cast.ty.dtype)
    bounds = _bounds(cast.value) if dtype.split("x")[0] == "int32" else None
    if bounds is None:
        return cast
    total, low, high = bounds
    zero = total.b if isinstance(total, tirx.Add) else None
    rounded = total if zero is None else total.a
    known = isinstance(rounded, ir.Call) and rounded.op.same_as(_NEAREST)
    whole = zero is None or (isinstance(zero, tirx.Cast) and "int" in str(zero.value.ty.dtype))
    if not known or not whole:
        return cast
    wide = str(rounded.ty.dtype)
    value = _corrected(rounded.args[0], once)
    ends = [tirx.const(each, wide) if zero is None else _less(each, zero, wide, once) for each in (low, high)]
    moved = tirx.Min(tirx.Max(value, ends[0]), ends[1]) + tirx.const(_ROUNDING, wide)
    bits = tirx.const(_ROUNDING_BITS, "int32")
    less = tirx.const(_ROUNDING_BITS, dtype) if zero is None else _bits_less(zero.value, bits, dtype, once)
    return tirx.reinterpret(dtype, moved) - less


def _less(bound: float, zero, dtype: str, once: _Once):
    """Return a bound less a zero point."""
    number = zero.value.value.astype("float32") if isinstance(zero.value, tirx.Broadcast) else None
    if number is None:
        return once.value(tirx.const(bound, dtype) - zero)
    return once.value(tirx.Broadcast(tirx.const(bound, "float32") - number, zero.value.lanes))


def _bits_less(zero, bits, dtype: str, once: _Once):
    """Return `bits` less a zero point."""
    if isinstance(zero, tirx.Broadcast):
        return once.value(tirx.Broadcast(bits - zero.value.astype("int32"), zero.lanes))
    return once.value(tirx.const(_ROUNDING_BITS, dtype) - zero.astype(dtype))


def _bounds(value) -> tuple | None:
    """Return the value inside of constant bounds below 2**17, and these."""
    if not isinstance(value, tirx.Min) or not isinstance(value.a, tirx.Max):
        return None
    low, high = _number(value.a.b), _number(value.b)
    known = low is not None and high is not None and max(abs(low), abs(high)) < 1 << 17
    return (value.a.a, low, high) if known and str(value.ty.dtype).startswith("float32") else None


def _number(value) -> float | None:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return float(value.value) if isinstance(value, tirx.FloatImm) else None


def _corrected(value, once: _Once) -> ir.Expr:
    """Return a quotient of float32 as `_quantized` has it; any other value as it is."""
    exact = _exact(value)
    if exact is None:
        return value
    dtype, scale = str(value.ty.dtype), value.b
    single = scale.value if isinstance(scale, tirx.Broadcast) else scale
    kind = str(single.ty.dtype)
    inverse = tirx.call_pure_extern(kind, f"__nv_{_QUOTIENT}", tirx.const(1, kind), single)
    inverse = once.value(tirx.Broadcast(inverse, scale.lanes) if isinstance(scale, tirx.Broadcast) else inverse)
    if not isinstance(inverse.value if isinstance(inverse, tirx.Broadcast) else inverse, tirx.Var):
        return exact  # a scale of its own for each result
    scale = once.value(scale)
    given, first = tirx.Var("dividend", dtype), tirx.Var("quotient", dtype)
    rest = tirx.call_pure_extern(dtype, "__nv_fmaf_rn", tirx.const(0, dtype) - first, scale, given)
    exactly = tirx.call_pure_extern(dtype, "__nv_fmaf_rn", rest, inverse, first)
    chosen = tirx.Select(tirx.abs(first) < tirx.const(float(1 << 20), dtype), exactly, first)
    product = tirx.call_pure_extern(dtype, "__nv_fmul_rn", given, inverse)
    return tirx.Let(given, value.a, tirx.Let(first, product, chosen))


def with_declarations(source: str) -> str:
    """Return CUDA source with declarations of the device library's functions that it calls."""
    known = {**{_name(function): count for function, count in _ARGUMENTS.items()}, f"__nv_{_QUOTIENT}": 2}
    known |= {"__nv_fmul_rn": 2, "__nv_fmaf_rn": 3}
    called = {name: count for name, count in known.items() if f"{name}(" in source}
    stated = [f'extern "C" __device__ float {name}({", ".join(["float"] * n)});\n' for name, n in called.items()]
    return "".join(stated) + source

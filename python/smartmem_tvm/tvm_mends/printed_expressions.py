# SPDX-License-Identifier: Apache-2.0
"""Expressions that this TVM prints wrongly, or not at all, as OpenCL or CUDA source: one pass for each fault."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from .._tvm import TEXTURE_LOAD


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixConstants")
class FixConstants:
    """Work-around: numbers that are not what TVM's text of them says, by their bits.

    Before::

        0.1                        # of float64; in OpenCL C  1.000000e-01, but 0.70710678 is  7.071068e-01
        T.float64("inf")           # INFINITY, which is a float: select has no such form

    After::

        as_double(4604544271217802189)

    TVM prints seven digits for OpenCL, and fifteen after the point for CUDA's doubles. The lowest integer, for which C
    has no literal either, is given its type.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel."""
        target = (func.attrs or {}).get("target")
        kind = target.kind.name if target is not None else ""
        if kind not in _EXACT:
            return func
        rules = [(tirx.FloatImm, lambda number: _written(number, kind)), (tirx.IntImm, _lowest)]
        return func.with_body(tvm_ffi.structural_map(func.body, rules))


# Target, type -> the number that C reads from TVM's text, and the function that makes a number from its bits.
_EXACT = {
    "opencl": {
        "float16": (lambda x: np.float16(np.float32(float(f"{x:e}"))), "as_half"),
        "float32": (lambda x: np.float32(float(f"{x:e}")), "as_float"),
        "float64": (lambda x: np.float64(float(f"{x:e}")), "as_double"),
    },
    "cuda": {"float64": (lambda x: np.float64(float(f"{x:.15f}")), "__longlong_as_double")},
}
_LOWEST = np.iinfo("int32").min
_INFINITE = frozenset({"float32"})  # the type of OpenCL's INFINITY and NAN


def _written(number: tirx.FloatImm, kind: str) -> ir.Expr:
    dtype, value = str(number.ty.dtype), float(number.value)
    read, function = _EXACT[kind].get(dtype, (None, ""))
    if read is None:
        return number
    if not np.isfinite(value):
        as_it_is = kind == "cuda" or dtype in _INFINITE
    else:
        with np.errstate(over="ignore", under="ignore"):
            as_it_is = read(value) == np.dtype(dtype).type(value)
    if as_it_is:
        return number
    with np.errstate(over="ignore", under="ignore"):
        exact = np.dtype(dtype).type(value)
    bits = exact.view(f"int{exact.nbytes * 8}")
    return tirx.call_pure_extern(dtype, function, tirx.IntImm(str(bits.dtype), int(bits)))


def _lowest(number: tirx.IntImm) -> ir.Expr:
    if number.value > _LOWEST:  # the quick exit: most numbers are indices, and reading a type takes longer
        return number
    dtype = str(number.ty.dtype)
    if dtype not in ("int32", "int64") or int(number.value) != np.iinfo(dtype).min:
        return number
    return tirx.Sub(tirx.IntImm(dtype, int(number.value) + 1), tirx.IntImm(dtype, 1))


_NARROW = {
    "opencl": {"int8": "(char)", "uint8": "(uchar)", "int16": "(short)", "uint16": "(ushort)"},
    "cuda": {"int8": "(signed char)", "uint8": "(unsigned char)", "int16": "(short)", "uint16": "(unsigned short)"},
}
_GROWING = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.LShift, tirx.BitwiseNot)


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixNarrowIntegers")
class FixNarrowIntegers:
    """Work-around: cut results of 8 and 16 bits off to their type.

    Before::

        (a + b) / 2;    T.Select(c, a % b + b, a)      # of int8

    After::

        (char)(a + b) / 2;    ...

    C promotes both to 32 bits, so that a sum does not wrap around, and an overloaded function such as OpenCL's
    ``select`` is given two types.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel."""
        target = (func.attrs or {}).get("target")
        names = _NARROW.get(target.kind.name if target is not None else "", {})
        if not names or not _has_types(func, names):
            return func

        def cut(value: ir.Expr) -> ir.Expr:
            name = names.get(str(value.ty.dtype)) if isinstance(value.ty, ir.PrimType) else None
            return value if name is None else tirx.call_pure_extern(value.ty, name, value)

        return func.with_body(tvm_ffi.structural_map(func.body, (_GROWING, cut)))


def _has_types(func: tirx.PrimFunc, names: Collection[str]) -> bool:
    """Whether a kernel has values of some types, from a load, a cast or a call."""
    made: list = list(func.params)
    tvm_ffi.structural_walk(func.body, ((tirx.AllocBuffer, tirx.DeclBuffer, tirx.Cast, ir.Call), made.append))
    types = (getattr(each, "buffer", each).ty for each in made)
    return any(_element(of) in names for of in types)


def _element(of: ir.Type) -> str:
    """Return the element type of a scalar, a vector, a buffer or a pointer."""
    while isinstance(of, ir.PointerType):
        of = of.element_type
    return str(getattr(of, "dtype", "")).partition("x")[0]


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixHalfRemainders")
class FixHalfRemainders:
    """Work-around: ``T.truncmod`` of halves in float32, where it is exact; TVM has none for CUDA."""

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel."""

        def single(rest: tirx.Mod) -> ir.Expr:
            dtype = str(rest.ty.dtype)
            if not dtype.startswith("float16"):
                return rest
            wide = dtype.replace("float16", "float32")
            return tirx.Mod(rest.a.astype(wide), rest.b.astype(wide)).astype(dtype)

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Mod, single)))


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixByteBroadcasts")
class FixByteBroadcasts:
    """Work-around: four times the same byte, known at run time only, for CUDA.

    Before::

        T.Broadcast(x, 4)                                                     # of int8 or uint8

    After::

        T.reinterpret("int8x4", T.Cast("uint32", T.Cast("uint8", x)) * 0x01010101)

    TVM's CUDA source holds four bytes in one integer, and TVM can build that integer from constants only.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel."""

        def word(broadcast: tirx.Broadcast) -> ir.Expr:
            dtype = str(broadcast.ty.dtype)
            if dtype not in ("int8x4", "uint8x4") or isinstance(broadcast.value, tirx.IntImm):
                return broadcast
            byte = tirx.Cast("uint32", tirx.Cast("uint8", broadcast.value))
            return tirx.reinterpret(dtype, byte * tirx.const(0x01010101, "uint32"))

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Broadcast, word)))


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixFallingTexels")
class FixFallingTexels:
    """Work-around: no texel is read at a constant minus something, as it stands.

    Before::

        T.texture2d_load(image, 7 - x, y, layer, ...)

    After::

        T.texture2d_load(image, 7 - x | get_global_offset(0), y, layer, ...)

    NVIDIA's compiler (driver 580.159) turns the constant into an offset, and negates the rest as if it were a float: it
    reads the border everywhere. No launch here has a global offset, so that it is 0, which compilers cannot assume.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel."""
        if not any(isinstance(each.ty, ir.PointerType) and "texture" in each.ty.storage_scope for each in func.params):
            return func
        falling: set = set()  # variables that stand for such a coordinate
        binds: list[tirx.Bind] = []
        tvm_ffi.structural_walk(func.body, (tirx.Bind, binds.append))
        for bind in binds:
            if _falls(bind.value, falling):
                falling.add(bind.var)

        def rewrite(call: ir.Call) -> ir.Expr:
            if not call.op.same_as(TEXTURE_LOAD):
                return call
            image, x, y, *rest = call.args
            x, y = (_opaque(at) if _falls(at, falling) else at for at in (x, y))
            return tirx.call_intrin(call.ty, call.op, image, x, y, *rest)

        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, rewrite)))


def _opaque(index: ir.Expr) -> ir.Expr:
    return index | tirx.Cast(index.ty.dtype, tirx.call_pure_extern("uint64", "get_global_offset", 0))


def _falls(index: ir.Expr, falling: set) -> bool:
    """Whether a coordinate has a subtraction."""
    parts: list = []
    tvm_ffi.structural_walk(index, ((tirx.Sub, tirx.Mul, tirx.Var), parts.append))
    return any(part in falling if isinstance(part, tirx.Var) else _takes(part) for part in parts)


def _takes(part: tirx.Sub | tirx.Mul) -> bool:
    if isinstance(part, tirx.Sub):
        return not isinstance(part.b, tirx.IntImm)
    return any(isinstance(side, tirx.IntImm) and int(side.value) < 0 for side in (part.a, part.b))

# SPDX-License-Identifier: Apache-2.0
"""Lowering rules for functions that a target lacks in some types, or that TVM computes with too few digits.

They are in effect once TVM is imported through `_tvm`.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, tirx

# Functions for which TVM has C's names only, with a trailing "f" in float32, and no name for halves and vectors.
# OpenCL has one overloaded name for all types.
OPENCL_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "hypot", "ldexp", "log1p", "nextafter"),
    "tan",
)

# Functions that CUDA has for floats and doubles only, though TVM prints them for halves too.
CUDA_SINGLE_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan2", "atanh", "copysign", "cosh", "fmod", "hypot", "log1p", "nearbyint"),
    "sinh",
)


def in_single(call: ir.Call) -> ir.Expr:
    """Return a function of halves as one of floats, rounded; any other call unchanged."""
    dtype = str(call.ty.dtype)
    if not dtype.startswith("float16"):
        return call
    wide = dtype.replace("float16", "float32")  # also in the name of a vector type
    return tirx.call_intrin(wide, call.op, *(arg.astype(wide) for arg in call.args)).astype(dtype)


def _by_name(call: ir.Call) -> ir.Expr:
    return tirx.call_pure_extern(call.ty, call.op.name.removeprefix("tirx."), *call.args)


def _in_single_on_cuda(call: ir.Call) -> ir.Expr:
    if str(call.ty.dtype).startswith("float16"):
        return in_single(call)
    name = call.op.name.removeprefix("tirx.")
    suffix = "f" if str(call.ty.dtype).startswith("float32") else ""
    return tirx.call_pure_extern(call.ty, name + suffix, *call.args)


for _name in OPENCL_FUNCTIONS:
    tirx.register_intrin_lowering(f"tirx.{_name}", "opencl", f=_by_name, level=99)
for _name in CUDA_SINGLE_FUNCTIONS:
    tirx.register_intrin_lowering(f"tirx.{_name}", "cuda", f=_in_single_on_cuda, level=99)

# Functions without a half form in LLVM and in TVM's lowering rules: they are computed in float32. Otherwise code
# generation ends in "unknown intrinsic", also where TVM only folds a constant. Two of them have no vector form either.
SINGLE_FUNCTIONS = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "copysign",
    "cosh",
    "erf",
    "hypot",
    "log1p",
    "sinh",
)
SCALAR_FUNCTIONS = ("cosh", "sinh")


def _of_each_lane(call: ir.Call, make: Callable[[str, ir.Expr], ir.Expr]) -> ir.Expr:
    """Return a function of a vector as functions of its elements; `make` takes an element's type and argument."""
    dtype, _, lanes = str(call.ty.dtype).partition("x")
    if not lanes:
        return make(dtype, call.args[0])
    each = [make(dtype, tirx.Shuffle([call.args[0]], [i])) for i in range(int(lanes))]
    return tirx.Shuffle(each, list(range(int(lanes))))


def _lane_by_lane(call: ir.Call) -> ir.Expr:
    """Work-around: split these functions of a vector into functions of its elements, as LLVM has no vector form."""
    if "x" not in str(call.ty.dtype):
        return in_single(call)
    return _of_each_lane(call, lambda dtype, x: tirx.call_intrin(dtype, call.op, x))


for _name in SINGLE_FUNCTIONS:
    _rule = _lane_by_lane if _name in SCALAR_FUNCTIONS else in_single
    tirx.register_intrin_lowering(f"tirx.{_name}", "llvm", f=_rule, level=99)

# TVM computes these by exponentials and logarithms, which lose the digits of small numbers. In float32 the error is
# that of ONNX Runtime; for doubles these rules call C's functions.
EXACT_DOUBLES = ("atanh", "tanh")


def _as_in_c(call: ir.Call, otherwise: Callable[[ir.Call], ir.Expr] | None) -> ir.Expr:
    if not str(call.ty.dtype).startswith("float64"):
        return otherwise(call) if otherwise is not None else call
    name = call.op.name.removeprefix("tirx.")
    return _of_each_lane(call, lambda dtype, x: tirx.call_pure_extern(dtype, name, x))


for _name in EXACT_DOUBLES:
    _before = ir.Op.get(f"tirx.{_name}").get_attr("llvm.FLowerIntrinsic")
    tirx.register_intrin_lowering(
        f"tirx.{_name}", "llvm", f=lambda call, before=_before: _as_in_c(call, before), level=100
    )

# OpenCL's functions for the special unit of a GPU. TVM has no names for them, and a call of an external function is
# none that it vectorizes.
NATIVE_FUNCTIONS = ("native_exp2", "native_log2", "native_recip")


def _register(name: str) -> None:
    tvm.get_global_func("ir.RegisterOp")(name, "A function of the special unit of a GPU.")
    op, pure = ir.Op.get(name), ir.Op.get("tirx.exp2").get_attr("TCallEffectKind")
    op.add_argument("x", "Expr", "A number, or a vector.")
    op.set_num_inputs(1)
    op.set_attr("TCallEffectKind", pure)
    op.set_attr("TVectorizable", True)
    tirx.register_intrin_lowering(name, "opencl", f=_by_name, level=99)


for _name in NATIVE_FUNCTIONS:
    _register(f"tirx.{_name}")

# SPDX-License-Identifier: Apache-2.0
"""KeepNan: element-wise maxima and minima propagate NaN, on CPUs."""

from __future__ import annotations

import tvm
from tvm import ir, tirx

from .._tvm import mapped
from ..ir.map_functions import map_functions
from ..ir.walk import loads
from ..target import on_cpu


@tvm.transform.module_pass(opt_level=0, name="smartmem.KeepNan")
class KeepNan:
    """Let an element-wise maximum or minimum of NaN be NaN, as ONNX has it, on CPU targets.

    Before::

        y[i] = T.max(x[i], 0.0)                             # 0 for NaN
        z[i] = T.min(x[i], y[i])                            # y[i] if x[i] is NaN

    After::

        y[i] = T.max(0.0, x[i])
        z[i] = T.call_llvm_pure_intrin("float32", "llvm.minimum", x[i], y[i])

    TVM returns the second operand if one of the two is NaN: Relu, Clip, Elu and Erf would turn NaN into an ordinary
    number. Reductions stay as they are: the maximum of a row ignores NaN, as it sometimes does in ONNX Runtime.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod` if the current target is a CPU."""
        return map_functions(mod, _kept) if on_cpu() else mod


def _kept(func: tirx.PrimFunc) -> tirx.PrimFunc:
    body = mapped(func.body, ((tirx.BufferStore, tirx.Bind), _with_nan))
    return func if body.same_as(func.body) else func.with_body(body)


def _with_nan(node: tirx.BufferStore | tirx.Bind) -> tirx.Stmt:
    """Rewrite the extremes in a store, or in a binding by `VectorizeMath`, which is never a reduction."""
    stored = node.buffer if isinstance(node, tirx.BufferStore) else None
    if stored is not None and not any(load.source.same_as(stored) for load in loads(node.value)):
        stored = None  # no reduction: this is tested once, and not for each of many nested extremes
    value = mapped(node.value, ((tirx.Max, tirx.Min), lambda each: _chosen(each, stored)))
    if value.same_as(node.value):
        return node
    if isinstance(node, tirx.Bind):
        return tirx.Bind(node.var, value)
    return tirx.BufferStore(node.buffer, value, node.indices)


def _chosen(extreme: tirx.Max | tirx.Min, stored: ir.Expr | None) -> ir.Expr:
    """Return the extreme in a form that is NaN if an operand is; itself for integers and reductions into `stored`."""
    dtype = str(extreme.ty.dtype)
    if not dtype.startswith(("float", "bfloat")):
        return extreme
    if isinstance(extreme.b, tirx.FloatImm):
        return type(extreme)(extreme.b, extreme.a)
    constant = isinstance(extreme.a, tirx.FloatImm)
    reduces = stored is not None and any(load.source.same_as(stored) for load in loads(extreme))
    if constant or reduces:
        return extreme
    name = "maximum" if isinstance(extreme, tirx.Max) else "minimum"
    if not dtype.startswith("bfloat"):
        return _intrinsic(name, dtype, extreme.a, extreme.b)
    single = (tirx.Cast("float32", each) for each in (extreme.a, extreme.b))
    return tirx.Cast(dtype, _intrinsic(name, "float32", *single))


def _intrinsic(name: str, dtype: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Return LLVM's intrinsic of IEEE 754's operation, in which each operand appears once."""
    return tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}", a, b)

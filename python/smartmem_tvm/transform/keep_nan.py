# SPDX-License-Identifier: Apache-2.0
"""KeepNan: element-wise maxima and minima of what is no number."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..ir.map_functions import map_functions
from ..ir.walk import collect, loads, stores
from ..target import is_cpu


@tvm.transform.module_pass(opt_level=0, name="smartmem.KeepNan")
class KeepNan:
    """Let an element-wise maximum or minimum of NaN be NaN, as ONNX has it, on CPU targets.

    Before::

        y[i] = T.max(x[i], 0.0)                             # 0 for NaN
        z[i] = T.min(x[i], y[i])                            # y[i] if x[i] is NaN

    After::

        y[i] = T.max(0.0, x[i])
        z[i] = T.call_llvm_pure_intrin("float32", "llvm.minimum", x[i], y[i])

    TVM takes the second of two of which one is NaN: Relu, Clip, Elu and Erf would make an ordinary number of it.
    Reductions stay as they are: a row of which one number is NaN has a maximum without it, as in ONNX Runtime at times.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod` if the current target is a CPU."""
        target = tvm.target.Target.current(allow_none=True)
        if target is None or not is_cpu(target):
            return mod
        return map_functions(mod, _kept)


def _kept(func: tirx.PrimFunc) -> tirx.PrimFunc:
    found: dict = {}
    for store in stores(func.body):
        value = _with_nan(store.value, store.buffer)
        if not value.same_as(store.value):
            found[store] = tirx.BufferStore(store.buffer, value, store.indices)
    for bind in collect(func.body, tirx.Bind):  # what a formula reads several times (VectorizeMath), never a reduction
        value = _with_nan(bind.value, None)
        if not value.same_as(bind.value):
            found[bind] = tirx.Bind(bind.var, value)
    if not found:
        return func
    nodes = (tirx.BufferStore, tirx.Bind)
    return func.with_body(tvm_ffi.structural_map(func.body, (nodes, lambda each: found.get(each, each))))


def _with_nan(value: ir.Expr, stored: ir.Expr | None) -> ir.Expr:
    return tvm_ffi.structural_map(value, ((tirx.Max, tirx.Min), lambda each: _chosen(each, stored)))


def _chosen(extreme: tirx.Max | tirx.Min, stored: ir.Expr | None) -> ir.Expr:
    """The same extreme, NaN if one of the two is; itself if it is of integers, or of a reduction into `stored`."""
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
    """IEEE 754's own, which writes each operand once."""
    return tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}", a, b)

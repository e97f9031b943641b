# SPDX-License-Identifier: Apache-2.0
"""KeepNan: element-wise maxima and minima of what is no number."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..ir.map_functions import map_functions
from ..ir.walk import collect_outside, loads, stores
from ..target import is_cpu

_SHORT = 128  # nodes of an expression, without those of indices


@tvm.transform.module_pass(opt_level=0, name="smartmem.KeepNan")
class KeepNan:
    """Let an element-wise maximum or minimum of NaN be NaN, as ONNX has it, on CPU targets.

    Before::

        y[i] = T.max(x[i], 0.0)                             # 0 for NaN
        z[i] = T.min(x[i], y[i])                            # y[i] if x[i] is NaN

    After::

        y[i] = T.max(0.0, x[i])
        z[i] = T.Select(y[i] < x[i] or T.isnan(y[i]), y[i], x[i])

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
    found = {}
    for store in stores(func.body):
        value = tvm_ffi.structural_map(store.value, ((tirx.Max, tirx.Min), lambda each, s=store: _chosen(each, s)))
        if not value.same_as(store.value):
            found[store] = tirx.BufferStore(store.buffer, value, store.indices)
    if not found:
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, lambda each: found.get(each, each))))


def _chosen(extreme: tirx.Max | tirx.Min, store: tirx.BufferStore) -> ir.Expr:
    """The same extreme by a comparison that is false of NaN; itself if it is of integers, or of a reduction."""
    if not str(extreme.ty.dtype).startswith(("float", "bfloat")):
        return extreme
    if isinstance(extreme.b, tirx.FloatImm):
        return type(extreme)(extreme.b, extreme.a)
    constant = isinstance(extreme.a, tirx.FloatImm)
    reduces = any(load.source.same_as(store.buffer) for load in loads(extreme))
    # Each operand is written twice: of long ones code would grow with each function that is applied to the last.
    if constant or reduces or len(collect_outside(extreme, ir.Expr, ir.TensorLoad)) > _SHORT:
        return extreme
    a, b = extreme.a, extreme.b
    beyond = a < b if isinstance(extreme, tirx.Max) else b < a
    return tirx.Select(tirx.any(beyond, tirx.isnan(b)), b, a)

# SPDX-License-Identifier: Apache-2.0
"""Softmax's division of exponentials by their own sum, as a product with the inverse, which is computed once per row.

    y[i, j] = e[i, j] / s[i], s[i] += e[i, j], e[i, j] = exp(...)    ->    y[i, j] = e[i, j] * (1 / s[i])

A division of vectors takes as long as eight multiplications. Other quotients stay as they are: the inverse of a very
small divisor is infinite, while no sum of `VectorizeMath`'s exponentials is that small, and a number divided by itself
has to be 1.
"""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ...ir.index_map import function_name
from ...ir.kernel import Kernel, Stage
from ...ir.walk import collect, contains
from ..core.reduction import combiner_of

_EXPONENTIALS = frozenset({"exp", "reinterpret"})  # the call itself, and the one in `VectorizeMath`'s polynomial


def division_by_inverse(kernel: Kernel) -> Kernel:
    """Return the kernel with these quotients as products."""
    sums = [(stage, source) for stage in kernel.stages if (source := _summed(stage)) is not None]
    exponentials = {stage.body.buffer for stage in kernel.stages if sums and _is_exponential(stage)}
    summed = {stage.body.buffer: source for stage, source in sums if source in exponentials}
    if not summed:
        return kernel
    return Kernel(kernel.inputs, kernel.outputs, tuple(_inverted(stage, summed) for stage in kernel.stages))


def _is_exponential(stage: Stage) -> bool:
    if stage.reduction or not isinstance(stage.body, tirx.BufferStore) or str(stage.body.value.ty.dtype) != "float32":
        return False
    calls = (call for call in collect(stage.body.value, ir.Call) if str(call.ty.dtype) == "float32")
    return any(function_name(call) in _EXPONENTIALS for call in calls)


def _summed(stage: Stage):
    """Return the tensor whose elements a stage adds up, None for other stages."""
    if not stage.reduction or not isinstance(stage.body, tirx.BufferStore):
        return None
    parts = combiner_of(stage) if isinstance(stage.body.value, tirx.Add) else None
    return parts[1].source if parts is not None and isinstance(parts[1], ir.TensorLoad) else None


def _inverted(stage: Stage, summed: dict) -> Stage:
    if stage.reduction or not isinstance(stage.body, tirx.BufferStore):
        return stage

    def product(quotient):
        by = quotient.b
        source = summed.get(by.source) if isinstance(by, ir.TensorLoad) else None
        if source is None or not contains(quotient.a, ir.TensorLoad, lambda load: load.source.same_as(source)):
            return quotient
        return quotient.a * (tirx.const(1, by.ty.dtype) / by)

    value = tvm_ffi.structural_map(stage.body.value, (tirx.Div, product))
    if value.same_as(stage.body.value):
        return stage
    return replace(stage, body=tirx.BufferStore(stage.body.buffer, value, list(stage.body.indices)))

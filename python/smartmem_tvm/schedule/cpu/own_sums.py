# SPDX-License-Identifier: Apache-2.0
"""Quotients of numbers and their own sum, as softmax has them: a product with the inverse, which is one for a row.

    y[i, j] = e[i, j] / s[i], s[i] += e[i, j]    ->    y[i, j] = e[i, j] * (1 / s[i])

A vector's division takes as long as eight of its multiplications, a third of softmax's time. Other divisors stay: the
inverse of a very small one is infinite, but a sum is hardly ever that small where its parts are worth dividing.
"""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ...ir.kernel import Kernel, Stage
from ...ir.walk import contains
from ..core.reduction import combiner_of

_TYPES = ("float32", "float64")  # halves would be rounded twice


def own_sums_inverted(kernel: Kernel) -> Kernel:
    """The kernel with such quotients as products."""
    summed = {stage.body.buffer: source for stage in kernel.stages if (source := _summed(stage)) is not None}
    if not summed:
        return kernel
    return Kernel(kernel.inputs, kernel.outputs, tuple(_inverted(stage, summed) for stage in kernel.stages))


def _summed(stage: Stage):
    """The tensor whose elements a stage adds up, None for other stages."""
    if not stage.reduction or not isinstance(stage.body, tirx.BufferStore):
        return None
    parts = combiner_of(stage)
    if parts is None or not isinstance(parts[1], ir.TensorLoad):
        return None
    one = tirx.const(1, parts[1].ty.dtype)
    return parts[1].source if isinstance(parts[0](parts[1], one), tirx.Add) else None


def _inverted(stage: Stage, summed: dict) -> Stage:
    if stage.reduction or not isinstance(stage.body, tirx.BufferStore):
        return stage

    def product(quotient):
        by = quotient.b
        if not isinstance(by, ir.TensorLoad) or str(quotient.ty.dtype) not in _TYPES:
            return quotient
        source = summed.get(by.source)
        if source is None or not contains(quotient.a, ir.TensorLoad, lambda load: load.source.same_as(source)):
            return quotient
        return quotient.a * (tirx.const(1, by.ty.dtype) / by)

    value = tvm_ffi.structural_map(stage.body.value, (tirx.Div, product))
    if value.same_as(stage.body.value):
        return stage
    return replace(stage, body=tirx.BufferStore(stage.body.buffer, value, list(stage.body.indices)))

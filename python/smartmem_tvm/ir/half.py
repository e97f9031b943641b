# SPDX-License-Identifier: Apache-2.0
"""Store some tensors of a kernel in 16 bits, as float16 or bfloat16; the kernel still computes in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import tvm_ffi
from tvm import ir, tirx

from .index_map import function_name, is_if_then_else
from .kernel import SPATIAL, Kernel, Stage
from .walk import collect, loads

HALF, FLOAT = "float16", "float32"
LARGEST = 65504.0  # the largest finite float16
RANGES = {HALF: LARGEST, "bfloat16": 255 * 2.0**120}
"""16-bit type -> its largest finite number."""
SMALLEST = 2.0**-24  # the smallest positive float16
NORMAL = 2.0**-14  # the smallest one with all 11 bits
# Functions with small results; exp is one because kernels subtract the maximum from its argument.
_BOUNDED = frozenset({"exp", "tanh", "sigmoid", "erf", "cos", "sin", "atan"})


def halved(kernel: Kernel, buffer, dtype: str = HALF) -> tuple[Kernel, object]:
    """Return the kernel with a float32 input or output stored as float16 or bfloat16, and the new buffer.

    Before::

        out[i] = in[i] * 2

    After, for both::

        out'[i] = T.Cast("float16", T.Cast("float32", in'[i]) * 2)

    A sum accumulates in float32 and is rounded at its end.
    """
    new = tirx.decl_buffer(buffer.shape, dtype, buffer.name, scope=buffer.scope())
    if any(buffer.same_as(each) for each in kernel.inputs):
        return _read_as(kernel, buffer, new), new
    return _written_as(kernel, buffer, new), new


def _read_as(kernel: Kernel, buffer, new) -> Kernel:
    def load(old):
        return new[tuple(old.indices)].astype(FLOAT) if old.source.same_as(buffer) else old

    def moved(stage: Stage) -> Stage:
        return replace(stage, body=tvm_ffi.structural_map(stage.body, (ir.TensorLoad, load)))

    inputs = tuple(new if each.same_as(buffer) else each for each in kernel.inputs)
    return Kernel(inputs, kernel.outputs, tuple(map(moved, kernel.stages)))


def _written_as(kernel: Kernel, buffer, new) -> Kernel:
    outputs = tuple(new if each.same_as(buffer) else each for each in kernel.outputs)
    *before, last = kernel.stages
    if not last.reduction and isinstance(last.body, tirx.BufferStore) and not kernel.readers(buffer):
        rounded = replace(last, body=tirx.BufferStore(new, rounded_to(last.body.value, new.dtype), last.body.indices))
        return Kernel(kernel.inputs, outputs, (*before, rounded))
    return Kernel(kernel.inputs, outputs, (*kernel.stages, _rounding(buffer, new)))


def _rounding(buffer, new) -> Stage:
    """``new[i...] = half(buffer[i...])``."""
    iters = [
        tirx.IterVar(ir.Range(0, extent), tirx.Var(f"v_h{n}", extent.ty.dtype), SPATIAL)
        for n, extent in enumerate(buffer.shape)
    ]
    at = tuple(it.var for it in iters)
    return Stage(f"{buffer.name}_half", tuple(iters), tirx.BufferStore(new, buffer[at].astype(new.dtype), at))


def as_half(value):
    """Return a float32 value rounded to float16; a value widened from float16 is unwrapped."""
    return rounded_to(value, HALF)


def rounded_to(value, dtype: str):
    """Return a value rounded to a shorter type; a value widened from that type is unwrapped."""
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == dtype:
        return value.value
    if is_if_then_else(value):
        condition, yes, no = value.args
        return tirx.if_then_else(condition, rounded_to(yes, dtype), rounded_to(no, dtype))
    return value.astype(dtype)


def is_exactly(value, dtype: str) -> bool:
    """Whether `rounded_to` loses nothing: the value has the shorter type, or was widened from it."""
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) == FLOAT:
        return str(value.value.ty.dtype) == dtype
    if is_if_then_else(value):
        return all(is_exactly(each, dtype) or _is_zero(each) for each in value.args[1:])
    return str(value.ty.dtype) == dtype


def _is_zero(value) -> bool:
    return isinstance(value, tirx.FloatImm) and value.value == 0


def exceeds_half(kernel: Kernel, beyond: Sequence = (), largest: float = LARGEST) -> bool:
    """Whether the result may contain numbers beyond `largest`, which the type cannot hold, as masks add them.

    They come from the kernel's own constants or from inputs in `beyond`. A maximum or minimum stops them (the padding
    of a pool never wins), and so do functions with small results (the softmax of masked scores). Divisors make a value
    smaller and do not count: a mean divides by the number of elements of a long row.
    """
    large: list = list(beyond)
    for stage in kernel.stages:
        value = _without_bounded(stage.body)
        passed = any(load.source.same_as(each) for load in loads(value) for each in large)
        if (passed and not _compares(stage)) or _largest(value) > largest:
            large += stage.outputs
    return any(each.same_as(out) for out in kernel.outputs for each in large)


def _without_bounded(node):
    """Return the statement with zeros for functions with small results, and without divisions by constants."""

    def call(old):
        return tirx.const(0, old.ty.dtype) if function_name(old) in _BOUNDED else old

    def quotient(old):
        return old.a if isinstance(old.b, tirx.FloatImm) and abs(old.b.value) >= 1 else old

    return tvm_ffi.structural_map(tvm_ffi.structural_map(node, (ir.Call, call)), (tirx.Div, quotient))


def _compares(stage: Stage) -> bool:
    value = getattr(stage.body, "value", None)
    return bool(stage.reduction) and isinstance(value, (tirx.Max, tirx.Min))


def _largest(node) -> float:
    return max((abs(imm.value) for imm in collect(node, tirx.FloatImm) if isfinite(imm.value)), default=0.0)

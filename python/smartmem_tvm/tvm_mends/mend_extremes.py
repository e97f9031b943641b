# SPDX-License-Identifier: Apache-2.0
"""MendExtremes: maxima and minima are right where infinity is one of the numbers."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock

from ..ir.index_map import is_if_then_else
from ..ir.map_functions import map_functions
from ..ir.walk import collect, loads, stores

# TVM's initial value, the largest finite number of a type. For bfloat16 TVM takes float32's.
_LARGEST = {name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")}
_LARGEST["bfloat16"] = _LARGEST["float32"]


@tvm.transform.module_pass(opt_level=0, name="smartmem.MendExtremes")
class MendExtremes:
    """Begin a maximum of floats with minus infinity, a minimum with infinity, and the place of one of them with 0.

    Before::

        m[r] = -3.4028e38                       m[r], place[r] = -3.4028e38, -1
        m[r] = max(m[r], x[r, j])               ...

    After::

        m[r] = -inf                             m[r], place[r] = -inf, 0

    TVM begins with the least finite number, and pads a pooling with it. The maximum of a row of minus infinity is then
    finite, as in a fully masked row of attention, and the place of its largest number is -1. With 0 for its initial
    value, a place is always within the row. The pass runs while each kernel is one operator: after fusion, the least
    number may be a constant of the model.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`."""
        return map_functions(mod, _mended)


def _mended(func: tirx.PrimFunc) -> tirx.PrimFunc:
    blocks = [block for block in collect(func.body, SBlock) if block.init is not None]
    starts = {each: new for block in blocks for each, new in _starts(stores(block.init))}
    if not starts:
        return func
    compared = {load.source for block in blocks for load in loads(block.body)}

    def mend(store):
        if store in starts:
            return starts[store]
        return _padded_with_infinity(store) if store.buffer in compared else store

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, mend)))


def _starts(init: list) -> list[tuple]:
    """Return pairs of a reduction's initial value and the one that it should have."""
    found = [(each, _infinite(each.value)) for each in init]
    if all(value is None for _, value in found) and len(init) != 2:
        return []
    mended = [(each, value) for each, value in found if value is not None]
    if len(init) == 2:
        mended += [(each, tirx.const(0, each.value.ty.dtype)) for each in init if _is_no_place(each.value)]
    return [(each, tirx.BufferStore(each.buffer, value, each.indices)) for each, value in mended]


def _is_no_place(value) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == -1


def _infinite(value):
    """Return infinity for the largest finite number, minus infinity for the least one, None for any other value."""
    dtype = str(value.ty.dtype)
    if not isinstance(value, tirx.FloatImm) or abs(value.value) != _LARGEST.get(dtype):
        return None
    return tirx.const(np.copysign(np.inf, float(value.value)), dtype)


def _padded_with_infinity(store):
    """Return the store with infinity as its padding, if the padding is a type's extreme."""
    if not is_if_then_else(store.value):
        return store
    condition, inside, outside = store.value.args
    value = _infinite(outside)
    if value is None or not isinstance(inside, ir.TensorLoad):
        return store
    return tirx.BufferStore(store.buffer, tirx.if_then_else(condition, inside, value), store.indices)

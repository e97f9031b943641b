# SPDX-License-Identifier: Apache-2.0
"""LowerSingleTerms: a reduction over one element becomes an element-wise block."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ...ir.kernel import SPATIAL, Stage, rewrite_stages


@tvm.transform.module_pass(opt_level=0, name="smartmem.LowerSingleTerms")
class LowerSingleTerms:
    """Write a reduction over axes of one element as that element.

    Before::

        for i, k in T.grid(8, 1):
            y[i] = 0.0                          # in the block's init
            y[i] = y[i] + a[i, k] * b[k]

    After::

        for i, k in T.grid(8, 1):
            y[i] = 0.0 + a[i, k] * b[k]

    TVM's schedule rules drop the loop of one step and treat the block as an element-wise one with an ``init``. They
    then compute its consumer from the ``init`` value as well: ``min(y, z)`` becomes ``min(min(0, z) + a * b, z)``.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every unscheduled PrimFunc of `mod`; others are left alone."""
        return rewrite_stages(mod, _single)


def _single(stage: Stage) -> Stage:
    start, store = stage.init, stage.body
    plain = isinstance(start, tirx.BufferStore) and isinstance(store, tirx.BufferStore)
    if not plain or any(stage.extents[var] != 1 for var in stage.reduction):
        return stage

    def begin(load):
        return start.value if load.source.same_as(store.buffer) else load

    value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, begin))
    iters = tuple(tirx.IterVar(it.dom, it.var, SPATIAL) for it in stage.iters)
    return Stage(stage.name, iters, tirx.BufferStore(store.buffer, value, store.indices), None, stage.annotations)

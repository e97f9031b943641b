# SPDX-License-Identifier: Apache-2.0
"""Fold element-wise stages into their readers, so that a rule sees reductions and what surrounds them.

    t[i] = x[i] + b[i]; y[i] = erf(t[i] * 0.7) * t[i]   ->   y[i] = erf((x[i] + b[i]) * 0.7) * (x[i] + b[i])

A stage stays when folding would repeat work: a transcendental read by a reduction, or read at several places; a padded
copy read by a sliding window; or when the folded expression would grow out of proportion.
"""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import tirx

from ..analysis.kernel import Kernel, Stage, substitute
from .expressions import has_costly_call, has_select, loads, replace_loads, size

LARGEST = 4000  # nodes of a folded statement; LLVM and TVM are linear in it


def inline(kernel: Kernel) -> Kernel:
    """Fold every stage that can be folded without repeating expensive work; the kernel computes the same."""
    stages = list(kernel.stages)
    for stage in list(stages):
        if not stage.is_pointwise or any(stage.outputs[0].same_as(o) for o in kernel.outputs):
            continue
        current = next(s for s in stages if s.outputs[0].same_as(stage.outputs[0]))
        readers = [s for s in stages if any(load.source.same_as(current.outputs[0]) for load in s.loads)]
        if readers and all(_may_fold(current, reader, len(readers)) for reader in readers):
            stages = [folded_into(current, s) if s in readers else s for s in stages if s is not current]
    return Kernel(kernel.inputs, kernel.outputs, tuple(stages))


def _may_fold(stage: Stage, reader: Stage, readers: int) -> bool:
    if len(reader.outputs) != 1 or not isinstance(reader.body, tirx.BufferStore):
        return False
    sites = [load for load in reader.loads if load.source.same_as(stage.outputs[0])]
    value = stage.body.value
    if size(value) * len(sites) + size(reader.body) > LARGEST:
        return False
    costly = has_costly_call(value)
    if reader.reduction:
        return not costly and not has_select(value)
    same_place = all(tvm_ffi.structural_equal(tuple(s.indices), tuple(sites[0].indices)) for s in sites)
    return not costly or (readers == 1 and same_place and points(reader) <= points(stage))


def points(stage: Stage) -> int:
    """How often the statement of a stage is executed."""
    total = 1
    for extent in stage.extents.values():
        total *= extent
    return total


def folded_into(stage: Stage, reader: Stage) -> Stage:
    """`reader` with the value of `stage` in place of each load of it."""
    source = stage.outputs[0]
    if not any(load.source.same_as(source) for load in loads(reader.body)):
        return reader

    def value_at(load):
        if not load.source.same_as(source):
            return None
        return substitute(stage.body.value, dict(zip(stage.spatial, load.indices, strict=True)))

    return replace(reader, body=replace_loads(reader.body, value_at))

# SPDX-License-Identifier: Apache-2.0
"""Fold element-wise stages into their readers, for a GPU: arithmetic there is cheaper than a trip through memory.

Unlike on a CPU a padded copy is folded into the window that slides over it: a condition costs a thread next to nothing.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from ..analysis.kernel import Kernel, Stage
from .expressions import has_costly_call, size
from .inline import LARGEST, folded_into, points


def fold(kernel: Kernel) -> Kernel:
    """Fold every element-wise stage whose value is cheap, or needed at one place of one reader."""
    stages = list(kernel.stages)
    for original in kernel.stages:
        stage = next(s for s in stages if s.outputs[0].same_as(original.outputs[0]))
        if not stage.is_pointwise or any(stage.outputs[0].same_as(o) for o in kernel.outputs):
            continue
        readers = [s for s in stages if any(load.source.same_as(stage.outputs[0]) for load in s.loads)]
        if readers and all(_may_fold(stage, reader, len(readers)) for reader in readers):
            stages = [folded_into(stage, s) if s in readers else s for s in stages if s is not stage]
    return Kernel(kernel.inputs, kernel.outputs, tuple(stages))


def _may_fold(stage: Stage, reader: Stage, readers: int) -> bool:
    if len(reader.outputs) != 1 or not isinstance(reader.body, tirx.BufferStore):
        return False
    sites = [load for load in reader.loads if load.source.same_as(stage.outputs[0])]
    if size(stage.body.value) * len(sites) + size(reader.body) > LARGEST:
        return False
    if not has_costly_call(stage.body.value):
        return True
    first = tuple(sites[0].indices)
    at_once = readers == 1 and all(tvm_ffi.structural_equal(tuple(s.indices), first) for s in sites)
    return at_once and points(reader) <= points(stage)

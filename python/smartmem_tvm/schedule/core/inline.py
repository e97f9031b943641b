# SPDX-License-Identifier: Apache-2.0
"""Fold element-wise stages into their readers, so that a rule sees reductions and what surrounds them.

    t[i] = x[i] + b[i]; y[i] = erf(t[i] * 0.7) * t[i]   ->   y[i] = erf((x[i] + b[i]) * 0.7) * (x[i] + b[i])

A stage stays when folding would repeat work: a transcendental read by a reduction, or read at several places; a padded
copy read by a sliding window; or when the folded expression would grow out of proportion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tvm_ffi
from tvm import tirx

from ...ir.kernel import Kernel, Stage, substitute
from ...ir.walk import loads
from .expressions import has_costly_call, has_select, replace_loads, size

LARGEST = 4000  # nodes of a folded statement; LLVM and TVM are linear in it


MayFold = Callable[[Stage, Stage, int], bool]
"""Whether a stage may be folded into one of its readers, given how many it has."""


def inline(kernel: Kernel) -> Kernel:
    """Fold every stage that can be folded without repeating expensive work; the kernel computes the same."""
    return fold_where(kernel, _may_fold)


def fold_where(kernel: Kernel, may_fold: MayFold) -> Kernel:
    """Fold every element-wise stage that may be folded into all of its readers; the kernel computes the same."""
    stages = list(kernel.stages)
    for original in kernel.stages:
        stage = next(s for s in stages if s.outputs[0].same_as(original.outputs[0]))
        if not stage.is_pointwise or is_result(kernel, stage):
            continue
        readers = [s for s in stages if sites(stage, s)]
        if readers and all(may_fold(stage, reader, len(readers)) for reader in readers):
            stages = [folded_into(stage, s) if s in readers else s for s in stages if s is not stage]
    return Kernel(kernel.inputs, kernel.outputs, tuple(stages))


def is_result(kernel: Kernel, stage: Stage) -> bool:
    """Whether somebody outside reads what the stage computes."""
    return any(stage.outputs[0].same_as(each) for each in kernel.outputs)


def sites(stage: Stage, reader: Stage) -> list:
    """Loads of `reader` of what `stage` computes."""
    return [load for load in reader.loads if load.source.same_as(stage.outputs[0])]


def fits(stage: Stage, reader: Stage) -> bool:
    """Whether the statement of `reader` stays in proportion with `stage` folded into it."""
    return size(stage.body.value) * len(sites(stage, reader)) + size(reader.body) <= LARGEST


def at_once(stage: Stage, reader: Stage, readers: int) -> bool:
    """Whether folding repeats nothing: the only reader reads at one place, and not again and again."""
    first, *others = (tuple(load.indices) for load in sites(stage, reader))
    same_place = all(tvm_ffi.structural_equal(each, first) for each in others)
    return readers == 1 and same_place and points(reader) <= points(stage)


def has_one_store(stage: Stage) -> bool:
    """Whether a stage is a plain statement, whose loads can be replaced."""
    return len(stage.outputs) == 1 and isinstance(stage.body, tirx.BufferStore)


def _may_fold(stage: Stage, reader: Stage, readers: int) -> bool:
    if not (has_one_store(reader) and fits(stage, reader)):
        return False
    costly = has_costly_call(stage.body.value)
    if reader.reduction:
        return not costly and not has_select(stage.body.value)
    return not costly or at_once(stage, reader, readers)


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

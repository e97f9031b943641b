# SPDX-License-Identifier: Apache-2.0
"""Units of a chain: a stage, fused with the element-wise stage behind it that reads only the same point of it."""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import tirx

from ...ir.chain import Chain, Steps, places, reads
from ...ir.kernel import Stage, shape_of


@dataclass(frozen=True, eq=False)
class Unit:
    """A stage, and the stage behind it that reads only the same point of its result."""

    stage: Stage
    finish: Stage | None = None

    @property
    def last(self) -> Stage:
        """The stage whose result is stored."""
        return self.finish or self.stage


def buffers_of(unit: Unit) -> list:
    """Return the buffers that a unit writes and reads."""
    stages = [stage for stage in (unit.stage, unit.finish) if stage is not None]
    return [*(stage.body.buffer for stage in stages), *(load.source for stage in stages for load in reads(stage))]


def units_of(chain: Chain) -> list:
    """Return the items of a chain, loops as (steps, units), with element-wise stages fused into sums before them."""
    read: dict = {}
    for stage in chain.stages:
        for source in {load.source for load in reads(stage)}:
            read[source] = read.get(source, 0) + 1

    def joined(stages) -> list:
        found: list = []
        for stage in stages:
            if found and found[-1].finish is None and _finishes(found[-1].stage, stage, read, chain):
                found[-1] = Unit(found[-1].stage, stage)
            else:
                found.append(Unit(stage))
        return found

    items: list = []
    run: list = []
    for item in (*chain.items, None):
        if isinstance(item, Stage):
            run.append(item)
            continue
        items += joined(run)
        run = []
        if isinstance(item, Steps):
            items.append((item, joined(item.stages)))
    return items


def _finishes(stage: Stage, later: Stage, read: dict, chain: Chain) -> bool:
    """Whether `later` is the only reader of a sum and reads of it only the point that it writes itself."""
    own, at = stage.body.buffer, places(later)
    if later.reduction or not stage.reduction or read.get(own) != 1 or own in chain.outputs:
        return False
    found = [load for load in reads(later) if load.source.same_as(own)]
    if not found or any(shape_of(own)[dim] != n for dim, n in enumerate(shape_of(later.body.buffer)[: len(own.shape)])):
        return False
    return len(own.shape) == len(at) and all(_is_point(load, stage, later, at) for load in found)


def _is_point(load, stage: Stage, later: Stage, at: list) -> bool:
    mine = places(stage)
    for position, var, own, stored in zip(load.indices, at, mine, stage.body.indices, strict=True):
        if (var is None) != (own is None):
            return False
        if var is not None and not position.same_as(var):
            return False
        if var is None and not _same_slot(position, stored):
            return False
    return True


def same(indices, others) -> bool:
    """Whether two index tuples are structurally equal."""
    return tvm_ffi.structural_equal(list(indices), list(others))


def _same_slot(position, stored) -> bool:
    constants = all(isinstance(each, tirx.IntImm) for each in (position, stored))
    return (constants and int(position) == int(stored)) or tvm_ffi.structural_equal(position, stored)

# SPDX-License-Identifier: Apache-2.0
"""Roll up an unrolled loop: groups of stages that repeat become a loop over steps.

Two stages are alike if they compute the same function of their loads. The loads may differ from step to step: an input
may be read at indices that move by a constant, and a result of a stage a constant number of stages earlier. The results
of all steps go into one buffer, with a slot for each step that is read later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import tvm_ffi
from tvm import ir, sym, tirx

from .._tvm import mapped
from .chain import Steps
from .kernel import Stage
from .roll_regions import Form, Region, regions_of


def roll(stages: Sequence[Stage], kept: Sequence) -> list[Stage | Steps]:
    """Return `stages` with repetitions rolled up into loops.

    Parameters
    ----------
    stages : sequence of Stage
        The stages; each writes one buffer of its own, in the form that `places` accepts.
    kept : sequence
        Buffers that must not change: results.
    """
    made = {stage.outputs[0]: number for number, stage in enumerate(stages)}
    forms = [Form(stage, made) for stage in stages]
    regions = sorted(regions_of(forms, set(kept), 0, len(forms)), key=lambda region: region.start)
    return _rolled(forms, regions) if regions else list(stages)


def _rolled(forms: list[Form], regions: list[Region]) -> list[Stage | Steps]:
    spot: dict = {}  # buffer of a stage of a region -> the buffer of all steps, and the slot in it
    roles: dict = {}
    for region in regions:
        roles[region] = _buffers(forms, region)
        for step in range(region.steps):
            for role, (buffer, slots) in enumerate(roles[region]):
                spot[forms[region.number(step, role)].own] = buffer, step % slots
    items: list[Stage | Steps] = []
    for before, region in pairwise([None, *regions, None]):
        first = before.end if before is not None else 0
        last = region.start + region.peeled * region.length if region is not None else len(forms)
        items += [_placed(form.stage, spot) for form in forms[first:last]]
        if region is not None:
            items.append(_loop(forms, region, roles[region], spot))
    return items


def _buffers(forms: list[Form], region: Region) -> list[tuple]:
    """Return, for each stage of a step, the buffer of all steps and its number of slots, one for each step read."""
    back = [0] * region.length
    oldest = [region.steps] * region.length  # the earliest step that is read after the loop, or by all of its steps
    places = {
        forms[region.number(n, role)].own: (n, role) for n in range(region.steps) for role in range(region.length)
    }
    for number, form in enumerate(forms[region.start :], start=region.start):
        step = (number - region.start) // region.length
        for source in {load.source for load in form.loads} & places.keys():
            made, role = places[source]
            if step < region.peeled:
                back[role] = max(back[role], step - made)
            elif number >= region.end:
                oldest[role] = min(oldest[role], made)
    for read in (read for reads in region.reads for read in reads):
        if read.buffer is None:
            back[read.role] = max(back[read.role], read.back)
        elif read.buffer in places:
            made, role = places[read.buffer]
            oldest[role] = min(oldest[role], made)
    found = []
    for role in range(region.length):
        slots = min(region.steps, max(back[role] + 1, region.steps - oldest[role]))
        own = forms[region.number(0, role)].own
        shape = [tirx.const(slots, "int64"), *own.shape]
        found.append((tirx.decl_buffer(shape, str(own.dtype), own.name, layout=None), slots))
    return found


def _placed(stage: Stage, spot: dict) -> Stage:
    """Return a stage outside of the loops that accesses the new buffers."""

    def load(each):
        found = spot.get(each.source)
        return each if found is None else tirx.BufferLoad(found[0], [_int(found[1]), *each.indices])

    def store(each):
        found = spot.get(each.buffer)
        return each if found is None else tirx.BufferStore(found[0], each.value, [_int(found[1]), *each.indices])

    return _with(stage, load, store)


def _with(stage: Stage, load, store) -> Stage:
    def new(part):
        return None if part is None else mapped(part, (ir.TensorLoad, load), (tirx.BufferStore, store))

    return replace(stage, body=new(stage.body), init=new(stage.init))


def _int(value: int) -> tirx.IntImm:
    return tirx.const(value, "int64")


def _loop(forms: list[Form], region: Region, roles: list[tuple], spot: dict) -> Steps:
    step = tirx.Var("step", "int64")
    stages = []
    for role, reads in enumerate(region.reads):
        form = forms[region.number(region.peeled, role)]
        stages.append(_step(form, reads, region, roles, role, step, spot))
    return Steps(step, region.peeled, region.steps, tuple(stages))


def _at(step, back: int, slots: int):
    place = step if back == 0 else step - _int(back)
    return _int(0) if slots == 1 else tirx.floormod(place, _int(slots))


def _step(form: Form, reads, region: Region, roles: list, role: int, step, spot: dict) -> Stage:
    def load(each):
        if each.source.same_as(form.own):
            return tirx.BufferLoad(roles[role][0], [_at(step, 0, roles[role][1]), *each.indices])
        number = next((n for n, known in enumerate(form.loads) if tvm_ffi.structural_equal(each, known)), None)
        if number is None:
            return each
        read = reads[number]
        if read.buffer is None:
            buffer, slots = roles[read.role]
            return tirx.BufferLoad(buffer, [_at(step, read.back, slots), *each.indices])
        indices = [
            _moved(position, by, step, region.peeled) for position, by in zip(each.indices, read.moves, strict=True)
        ]
        found = spot.get(read.buffer)
        if found is not None:
            return tirx.BufferLoad(found[0], [_int(found[1]), *indices])
        return tirx.BufferLoad(read.buffer, indices)

    def store(each):
        return tirx.BufferStore(roles[role][0], each.value, [_at(step, 0, roles[role][1]), *each.indices])

    return _with(form.stage, load, store)


def _moved(position, by: int, step, first: int):
    """Return the index that is `position` in step `first`, and grows by `by` from step to step."""
    if not by:
        return position
    dtype = str(position.ty.dtype)
    number = step if dtype == "int64" else tirx.Cast(dtype, step)
    return sym.Analyzer().simplify(position + number * tirx.const(by, dtype) - tirx.const(first * by, dtype))

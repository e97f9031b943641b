# SPDX-License-Identifier: Apache-2.0
"""Rolling up: stages that repeat, one group of them after the other, become a loop over steps.

Two stages are alike if they compute the same of what they load. What they load may differ: an input at places that move
on by as much in each step, and what a stage as many places earlier has made. What a step makes goes into one buffer for
all steps, with a place for each step that is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import tvm_ffi
from tvm import ir, sym, tirx

from .._tvm import mapped
from .chain import Steps, stages_of
from .kernel import Stage, shape_of, substitute
from .walk import loads

LEAST_STEPS = 4
"""Steps that make a loop: fewer are written out."""
_LONGEST = 64  # stages of a step
_PEELED = 3  # first steps that may read something else than the others do


class _Form:
    """What a stage computes, with a variable in the place of each distinct load."""

    def __init__(self, stage: Stage, made: dict):
        self.stage, self.made = stage, made
        self.loads: list = []
        self.own = stage.outputs[0]
        found = [each for each in loads(stage.body) if not each.source.same_as(self.own)]
        for each in found:
            if not any(tvm_ffi.structural_equal(each, known) for known in self.loads):
                self.loads.append(each)

    @cached_property
    def key(self) -> tuple:
        """Equal for stages that may be alike; one that reads at places that are read themselves is like no other."""
        if any(loads(position) for each in self.loads for position in each.indices):
            return (id(self),)
        iters = tuple((it.iter_type, int(it.dom.extent), str(it.var.ty.dtype)) for it in self.stage.iters)
        types = tuple((str(each.source.dtype), len(each.source.shape)) for each in self.loads)
        own = tuple(shape_of(self.own)), str(self.own.dtype)
        return iters, types, own, tvm_ffi.structural_hash(self.skeleton, map_free_vars=True)

    @cached_property
    def holders(self) -> list:
        return [tirx.Var(f"load{n}", each.source.dtype) for n, each in enumerate(self.loads)]

    @cached_property
    def skeleton(self):
        def held(load):
            for known, holder in zip(self.loads, self.holders):
                if tvm_ffi.structural_equal(load, known):
                    return holder
            return load

        parts = [part for part in (self.stage.body, self.stage.init) if part is not None]
        return [mapped(part, (ir.TensorLoad, held)) for part in parts]

    def like(self, other: _Form) -> bool:
        """Whether it computes the same as `other` of what it loads, in the order in which both do."""
        if self.key != other.key:
            return False
        mine = [*(it.var for it in self.stage.iters), *self.holders, self.own]
        theirs = [*(it.var for it in other.stage.iters), *other.holders, other.own]
        names = dict(zip(mine, theirs, strict=True))
        named = [substitute(part, names) for part in self.skeleton]
        return tvm_ffi.structural_equal(named, other.skeleton)


@dataclass(frozen=True, eq=False)
class _Read:
    """What a load of a step reads: `buffer`, or where that is None what `role` has made `back` steps before."""

    buffer: object | None
    role: int
    back: int
    moves: tuple[int, ...]  # what each index grows by from step to step


@dataclass(frozen=True, eq=False)
class _Region:
    """Stages from `start`: `steps` times `length`, alike from the step `peeled` on."""

    start: int
    length: int
    steps: int
    peeled: int
    reads: tuple[tuple[_Read, ...], ...]

    @property
    def end(self) -> int:
        return self.start + self.length * self.steps

    def number(self, step: int, role: int) -> int:
        """Of a stage among all."""
        return self.start + step * self.length + role


def roll(stages: Sequence[Stage], kept: Sequence) -> list[Stage | Steps]:
    """`stages` with loops where they repeat themselves.

    Parameters
    ----------
    stages : sequence of Stage
        Each writes one buffer of its own, as `places` has it.
    kept : sequence
        Buffers that are to stay what they are: results.
    """
    made = {stage.outputs[0]: number for number, stage in enumerate(stages)}
    forms = [_Form(stage, made) for stage in stages]
    regions = sorted(_regions(forms, set(kept), 0, len(forms)), key=lambda region: region.start)
    return _rolled(forms, regions) if regions else list(stages)


def _regions(forms: list[_Form], kept: set, first: int, last: int) -> list[_Region]:
    """The longest region, and those before and behind it."""
    best = None
    for start, length in _candidates([form.key for form in forms[first:last]]):
        region = _checked(forms, kept, first + start, length, last)
        if region is not None and (best is None or region.steps * region.length > best.steps * best.length):
            best = region
        if best is not None:
            break
    if best is None:
        return []
    return [*_regions(forms, kept, first, best.start), best, *_regions(forms, kept, best.end, last)]


def _candidates(keys: list) -> list[tuple[int, int]]:
    """(start, length of a step) of runs that repeat their keys, those that cover most first, then short steps."""
    found = []
    for length in range(1, min(len(keys) // LEAST_STEPS, _LONGEST) + 1):
        run = 0
        for place in range(len(keys) - length, -1, -1):
            same = place + length < len(keys) and keys[place] == keys[place + length]
            if same:
                run += 1
            if run and (not same or place == 0):
                start = place if same else place + 1
                steps = (run + length) // length
                if steps >= LEAST_STEPS:
                    found.append((-steps * length, length, start))
                run = 0
            elif not same:
                run = 0
    return [(start, length) for _, length, start in sorted(found)[:8]]


def _checked(forms: list[_Form], kept: set, start: int, length: int, last: int) -> _Region | None:
    """The region, as far as its steps are alike in what they read, too."""
    until = next((number for number in range(start, last) if forms[number].own in kept), last)
    most = (until - start) // length
    for peeled in range(_PEELED + 1):
        if most - peeled < LEAST_STEPS:
            return None
        reads = [_reads(forms, start, length, peeled, role, last) for role in range(length)]
        if any(each is None for each in reads):
            continue
        steps = peeled + 2
        while steps < most and _follows(forms, start, length, peeled, steps, reads):
            steps += 1
        region = _Region(start, length, steps, peeled, tuple(map(tuple, reads)))
        if steps - peeled >= LEAST_STEPS:
            return region
    return None


def _reads(forms: list[_Form], start: int, length: int, peeled: int, role: int, last: int) -> list[_Read] | None:
    here, there = (forms[start + (peeled + n) * length + role] for n in (0, 1))
    if not there.like(here):
        return None
    found = [_read(here, there, one, other, start, length, peeled) for one, other in zip(here.loads, there.loads)]
    return None if any(each is None for each in found) else found


def _read(here: _Form, there: _Form, one, other, start: int, length: int, peeled: int) -> _Read | None:
    moves = _moves(here, there, one, other)
    if moves is None:
        return None
    if one.source.same_as(other.source):
        return _Read(one.source, 0, 0, moves)
    if any(moves):
        return None
    makers = here.made.get(one.source), here.made.get(other.source)
    if None in makers or makers[1] - makers[0] != length or makers[0] < start:
        return None
    step, role = divmod(makers[0] - start, length)
    return _Read(None, role, peeled - step, moves)


def _moves(here: _Form, there: _Form, one, other, times: int = 1) -> tuple[int, ...] | None:
    """By how much each index of a load grows from one step to another, `times` later; None if not by a number."""
    names = {it.var: new.var for it, new in zip(there.stage.iters, here.stage.iters, strict=True)}
    found = []
    for before, after in zip(one.indices, other.indices, strict=True):
        after = substitute(after, names)
        if tvm_ffi.structural_equal(before, after):
            found.append(0)
            continue
        by = sym.Analyzer().simplify(after - before)
        if not isinstance(by, tirx.IntImm) or int(by) % times:
            return None
        found.append(int(by) // times)
    return tuple(found)


def _follows(forms: list[_Form], start: int, length: int, peeled: int, step: int, reads: list) -> bool:
    """Whether a later step reads as the first two of the loop do."""
    for role, wanted in enumerate(reads):
        here, there = (forms[start + n * length + role] for n in (peeled, step))
        if not there.like(here):
            return False
        for read, one, other in zip(wanted, here.loads, there.loads, strict=True):
            if _moves(here, there, one, other, step - peeled) != read.moves:
                return False
            if read.buffer is not None:
                if not other.source.same_as(read.buffer):
                    return False
            elif here.made.get(other.source) != start + (step - read.back) * length + read.role:
                return False
    return True


# -- writing loops ---------------------------------------------------------------------------------------------------


def _rolled(forms: list[_Form], regions: list[_Region]) -> list[Stage | Steps]:
    spot: dict = {}  # what a stage of a region wrote -> the buffer of all steps, and its place in it
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


def _buffers(forms: list[_Form], region: _Region) -> list[tuple]:
    """For each stage of a step the buffer of all steps and how many places it has: one for each step that is read."""
    back = [0] * region.length
    oldest = [region.steps] * region.length  # step that is read behind the loop, or by all of its steps
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
    """A stage that stands outside of loops, with what it reads and writes where it is now."""

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


def _loop(forms: list[_Form], region: _Region, roles: list[tuple], spot: dict) -> Steps:
    step = tirx.Var("step", "int64")
    stages = []
    for role, reads in enumerate(region.reads):
        form = forms[region.number(region.peeled, role)]
        stages.append(_step(form, reads, region, roles, role, step, spot))
    return Steps(step, region.peeled, region.steps, tuple(stages))


def _at(step, back: int, slots: int):
    place = step if back == 0 else step - _int(back)
    return _int(0) if slots == 1 else tirx.floormod(place, _int(slots))


def _step(form: _Form, reads, region: _Region, roles: list, role: int, step, spot: dict) -> Stage:
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
    """A place that was `position` in the step `first`, and moves on from step to step."""
    if not by:
        return position
    dtype = str(position.ty.dtype)
    number = step if dtype == "int64" else tirx.Cast(dtype, step)
    return sym.Analyzer().simplify(position + number * tirx.const(by, dtype) - tirx.const(first * by, dtype))


def written_out(items: Sequence[Stage | Steps]) -> int:
    """Stages in the code of a chain."""
    return len(list(stages_of(items)))

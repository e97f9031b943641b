# SPDX-License-Identifier: Apache-2.0
"""Find regions where stages repeat: consecutive groups of stages that compute the same function of other numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import tvm_ffi
from tvm import ir, sym, tirx

from .._tvm import mapped
from .kernel import Stage, shape_of, substitute
from .walk import loads

LEAST_STEPS = 4
"""Least steps of a loop; fewer stay unrolled."""
_LONGEST = 64  # most stages of a step
_PEELED = 3  # most first steps that are peeled, because their reads differ from the others'


class Form:
    """The function that a stage computes, with a variable in place of each distinct load."""

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
        """A key that is equal for stages that may be alike; a stage with loads in indices is like no other."""
        if any(loads(position) for each in self.loads for position in each.indices):
            return (id(self),)
        iters = tuple((it.iter_type, int(it.dom.extent), str(it.var.ty.dtype)) for it in self.stage.iters)
        types = tuple((str(each.source.dtype), len(each.source.shape)) for each in self.loads)
        own = tuple(shape_of(self.own)), str(self.own.dtype)
        return iters, types, own, tvm_ffi.structural_hash(self.skeleton, map_free_vars=True)

    @cached_property
    def holders(self) -> list:
        """A variable for each load."""
        return [tirx.Var(f"load{n}", each.source.dtype) for n, each in enumerate(self.loads)]

    @cached_property
    def skeleton(self) -> list:
        """Body and initial store of the stage, with `holders` in place of loads."""

        def held(load):
            for known, holder in zip(self.loads, self.holders):
                if tvm_ffi.structural_equal(load, known):
                    return holder
            return load

        parts = [part for part in (self.stage.body, self.stage.init) if part is not None]
        return [mapped(part, (ir.TensorLoad, held)) for part in parts]

    def like(self, other: Form) -> bool:
        """Whether the stage computes the same function of its loads as `other`, in the order of their loads."""
        if self.key != other.key:
            return False
        mine = [*(it.var for it in self.stage.iters), *self.holders, self.own]
        theirs = [*(it.var for it in other.stage.iters), *other.holders, other.own]
        names = dict(zip(mine, theirs, strict=True))
        named = [substitute(part, names) for part in self.skeleton]
        return tvm_ffi.structural_equal(named, other.skeleton)


@dataclass(frozen=True, eq=False)
class Read:
    """The source of a load: `buffer`, or if that is None, the result of stage `role`, `back` steps before."""

    buffer: object | None
    role: int
    back: int
    moves: tuple[int, ...]  # growth of each index from step to step


@dataclass(frozen=True, eq=False)
class Region:
    """A region of repeated stages from `start` on: `steps` of `length` stages, alike from step `peeled` on."""

    start: int
    length: int
    steps: int
    peeled: int
    reads: tuple[tuple[Read, ...], ...]

    @property
    def end(self) -> int:
        """The number of the first stage after the region."""
        return self.start + self.length * self.steps

    def number(self, step: int, role: int) -> int:
        """Return the number of a stage among all stages."""
        return self.start + step * self.length + role


def regions_of(forms: list[Form], kept: set, first: int, last: int) -> list[Region]:
    """Return the longest region, and the regions before and after it."""
    best = None
    for start, length in _candidates([form.key for form in forms[first:last]]):
        region = _checked(forms, kept, first + start, length, last)
        if region is not None and (best is None or region.steps * region.length > best.steps * best.length):
            best = region
        if best is not None:
            break
    if best is None:
        return []
    return [*regions_of(forms, kept, first, best.start), best, *regions_of(forms, kept, best.end, last)]


def _candidates(keys: list) -> list[tuple[int, int]]:
    """Return (start, length of a step) of runs with repeating keys: the longest runs first, then shorter steps."""
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


def _checked(forms: list[Form], kept: set, start: int, length: int, last: int) -> Region | None:
    """Return the region of the steps whose loads are alike too, or None if there are too few."""
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
        region = Region(start, length, steps, peeled, tuple(map(tuple, reads)))
        if steps - peeled >= LEAST_STEPS:
            return region
    return None


def _reads(forms: list[Form], start: int, length: int, peeled: int, role: int, last: int) -> list[Read] | None:
    here, there = (forms[start + (peeled + n) * length + role] for n in (0, 1))
    if not there.like(here):
        return None
    found = [_read(here, there, one, other, start, length, peeled) for one, other in zip(here.loads, there.loads)]
    return None if any(each is None for each in found) else found


def _read(here: Form, there: Form, one, other, start: int, length: int, peeled: int) -> Read | None:
    moves = _moves(here, there, one, other)
    if moves is None:
        return None
    if one.source.same_as(other.source):
        return Read(one.source, 0, 0, moves)
    if any(moves):
        return None
    makers = here.made.get(one.source), here.made.get(other.source)
    if None in makers or makers[1] - makers[0] != length or makers[0] < start:
        return None
    step, role = divmod(makers[0] - start, length)
    return Read(None, role, peeled - step, moves)


def _moves(here: Form, there: Form, one, other, times: int = 1) -> tuple[int, ...] | None:
    """Return the growth of each index of a load per step, for two steps `times` apart; None if it is not constant."""
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


def _follows(forms: list[Form], start: int, length: int, peeled: int, step: int, reads: list) -> bool:
    """Whether the loads of a later step continue those of the first two steps of the loop."""
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

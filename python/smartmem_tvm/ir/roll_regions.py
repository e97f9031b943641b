# SPDX-License-Identifier: Apache-2.0
"""Where stages repeat themselves: groups of them, one after the other, that compute the same of other numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import tvm_ffi
from tvm import ir, sym, tirx

from .._tvm import mapped
from .kernel import Stage, shape_of, substitute
from .walk import loads

LEAST_STEPS = 4
"""Steps that make a loop: fewer are written out."""
_LONGEST = 64  # stages of a step
_PEELED = 3  # first steps that may read something else than the others do


class Form:
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
        """A variable for each load."""
        return [tirx.Var(f"load{n}", each.source.dtype) for n, each in enumerate(self.loads)]

    @cached_property
    def skeleton(self) -> list:
        """What is stored at first and for each term, with `holders` in the place of loads."""

        def held(load):
            for known, holder in zip(self.loads, self.holders):
                if tvm_ffi.structural_equal(load, known):
                    return holder
            return load

        parts = [part for part in (self.stage.body, self.stage.init) if part is not None]
        return [mapped(part, (ir.TensorLoad, held)) for part in parts]

    def like(self, other: Form) -> bool:
        """Whether it computes the same as `other` of what it loads, in the order in which both do."""
        if self.key != other.key:
            return False
        mine = [*(it.var for it in self.stage.iters), *self.holders, self.own]
        theirs = [*(it.var for it in other.stage.iters), *other.holders, other.own]
        names = dict(zip(mine, theirs, strict=True))
        named = [substitute(part, names) for part in self.skeleton]
        return tvm_ffi.structural_equal(named, other.skeleton)


@dataclass(frozen=True, eq=False)
class Read:
    """What a load of a step reads: `buffer`, or where that is None what `role` has made `back` steps before."""

    buffer: object | None
    role: int
    back: int
    moves: tuple[int, ...]  # what each index grows by from step to step


@dataclass(frozen=True, eq=False)
class Region:
    """Stages from `start`: `steps` times `length`, alike from the step `peeled` on."""

    start: int
    length: int
    steps: int
    peeled: int
    reads: tuple[tuple[Read, ...], ...]

    @property
    def end(self) -> int:
        """The stage behind it."""
        return self.start + self.length * self.steps

    def number(self, step: int, role: int) -> int:
        """Of a stage among all."""
        return self.start + step * self.length + role


def regions_of(forms: list[Form], kept: set, first: int, last: int) -> list[Region]:
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
    return [*regions_of(forms, kept, first, best.start), best, *regions_of(forms, kept, best.end, last)]


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


def _checked(forms: list[Form], kept: set, start: int, length: int, last: int) -> Region | None:
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


def _follows(forms: list[Form], start: int, length: int, peeled: int, step: int, reads: list) -> bool:
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

# SPDX-License-Identifier: Apache-2.0
"""Networks larger than memory: weights are read while earlier steps compute (FlexNN 3.3, preload-aware planning)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .arena import Arena, Block, PlanError, aligned, check_arena
from .preload_layout import Layout, Parts, both_ends, last_resort
from .preload_search import Found, Reading, Search
from .preload_steps import timeline


@dataclass(frozen=True)
class Tensor:
    """An activation, or what a step needs for itself.

    Attributes
    ----------
    bytes : int
        More than 0.
    first, last : int
        The steps, from 0 on, at which it is there. Both are the same for what one step needs alone.
    """

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Use:
    """One step reads one weight.

    Attributes
    ----------
    weight : int
        Which one of the file: a weight that two steps read is two uses.
    bytes : int
        More than 0, the same for each use of a weight.
    step : int
        That reads it.
    name : str
        Of the layer, for messages.
    """

    weight: int
    bytes: int
    step: int
    name: str = ""


@dataclass(frozen=True)
class Problem:
    """What is to be planned.

    Attributes
    ----------
    steps : int
        How many there are.
    tensors : tuple of Tensor
        In any order.
    uses : tuple of Use
        By step: the order in which they are read.
    seconds : tuple of float
        Of computing, of each step; estimates will do.
    alignment : int
        Bytes that each offset is a multiple of. Sizes count as rounded up to it.

    Raises
    ------
    ValueError
        If something is without bytes, at a step that is not there, or not in order.
    """

    steps: int
    tensors: tuple[Tensor, ...]
    uses: tuple[Use, ...]
    seconds: tuple[float, ...]
    alignment: int = 64

    def __post_init__(self):
        if len(self.seconds) != self.steps:
            raise ValueError(f"there are seconds of {len(self.seconds)} steps, not of {self.steps}.")
        for tensor in self.tensors:
            if tensor.bytes <= 0 or not 0 <= tensor.first <= tensor.last < self.steps:
                raise ValueError(f"{tensor} has no bytes, or is not within the {self.steps} steps.")
        sizes, before = {}, 0
        for use in self.uses:
            if use.bytes <= 0 or not before <= use.step < self.steps:
                raise ValueError(f"{use} has no bytes, or is not in the order of the {self.steps} steps.")
            if sizes.setdefault(use.weight, use.bytes) != use.bytes:
                raise ValueError(f"{use} is a weight that had {sizes[use.weight]} bytes before.")
            before = use.step


@dataclass(frozen=True)
class Load:
    """Where a weight lies, and when it may be read.

    Attributes
    ----------
    offset : int
        In the arena, in bytes.
    after : int
        The step at whose end reading may begin, -1 for at any time of the inference. Its place is the weight's at
        steps ``after + 1`` to that of the use.
    pinned : bool
        Read once and kept over inferences. Its place is the weight's at all steps; `after` is -1.
    """

    offset: int
    after: int
    pinned: bool


@dataclass(frozen=True)
class PreloadPlan:
    """A plan.

    Attributes
    ----------
    offsets : tuple of int
        Of the tensors.
    loads : tuple of Load
        Of the uses.
    bytes : int
        Of the arena.
    seconds : float
        Of an inference, by `simulate`.
    """

    offsets: tuple[int, ...]
    loads: tuple[Load, ...]
    bytes: int
    seconds: float


class OverBudget(ValueError):
    """There is a step that does not fit.

    Attributes
    ----------
    step : int
        Which one.
    needed : int
        Bytes of arena that it needs: with so many as budget all steps fit.
    """

    def __init__(self, message: str, step: int, needed: int):
        super().__init__(message)
        self.step, self.needed = step, needed


def plan_preload(
    problem: Problem, budget: int, bandwidth: float, preload: bool = True, pin: bool = True, time_limit: float = 0.5
) -> PreloadPlan:
    """Places and times for tensors and weights, so that steps wait little for what is read.

    Activations go to both ends of the arena, weights and what a step needs alone between them, step by step (FlexNN
    3.3.2, Algorithm 1). What memory is left keeps the weights that the steps would wait for, which the paper does
    only where all fit.

    Parameters
    ----------
    budget : int
        Bytes that the arena may have.
    bandwidth : float
        Bytes per second that one loader reads.
    preload : bool
        False: a weight is read only when the step before its own is done.
    pin : bool
        False: each weight is read in each inference.
    time_limit : float
        Seconds to look for something better than what Algorithm 1 and the weights chosen first lead to, and half as
        many to find out how many more weights there is room for. With 0 the plan depends on nothing but the arguments.

    Raises
    ------
    OverBudget
        If a step does not fit: exactly if `budget` is less than `least_budget`.
    ValueError
        If the bandwidth is not more than 0.
    """
    if not bandwidth > 0:
        raise ValueError(f"the bandwidth is {bandwidth} bytes per second, not more than 0.")
    until = time.perf_counter() + time_limit
    layouts = _layouts(problem)
    budget = max(budget, 0) // problem.alignment * problem.alignment
    fitting = [layout for layout in layouts.two_ends() if layout.bytes <= budget]
    if not fitting:
        fitting = [layout for layout in layouts.all() if layout.bytes <= budget]
    if not fitting:
        raise _over_budget(problem, min(layouts.all(), key=lambda layout: layout.bytes), budget)
    search = Search(fitting, _reading(problem, bandwidth), budget, preload)
    if not (pin and search.pin_all()):
        search.start()
        if pin:
            search.pin()
        search.improve(until, pin)
        if pin:
            search.keep(until + time_limit / 2 if time_limit else math.inf)
    return _plan(problem, search.best, bandwidth)


def least_budget(problem: Problem) -> int:
    """The smallest budget for which `plan_preload` succeeds.

    It is that of the layout of activations which takes least without preloading: each step's weights then lie beside
    that step's tensors alone, so that nothing need be tried. A better planner might do with less, but never with less
    than `lower_bound`.
    """
    return min(layout.bytes for layout in _layouts(problem).all())


def lower_bound(problem: Problem) -> int:
    """The largest sum of live bytes of any step, its weights among them."""
    return _layouts(problem).parts.bound


def check_preload(problem: Problem, plan: PreloadPlan, budget: int) -> None:
    """Prove that a plan is sound.

    Raises
    ------
    PlanError
        If two things that are in memory at the same step share a byte; if one is not aligned, or not within the
        arena, or the arena not within the budget; if a load waits for its own step or a later one; if a weight is
        pinned for some of its uses, or at two places; or if there is not one offset or load for each.
    """
    if len(plan.offsets) != len(problem.tensors) or len(plan.loads) != len(problem.uses):
        raise PlanError(f"the plan has {len(plan.offsets)} offsets and {len(plan.loads)} loads, which are not all.")
    if plan.bytes > budget:
        raise PlanError(f"the arena has {plan.bytes} bytes, the budget {budget}.")
    blocks = [Block(tensor.bytes, tensor.first, tensor.last) for tensor in problem.tensors]
    offsets, pinned = list(plan.offsets), {}
    for use, load in zip(problem.uses, plan.loads):
        if not -1 <= load.after < use.step:
            raise PlanError(f"{use} is loaded after step {load.after}, not after one before its own.")
        place = load.offset if load.pinned else None
        known = use.weight in pinned
        if pinned.setdefault(use.weight, place) != place:
            raise PlanError(f"weight {use.weight}, of {use}, is not pinned at one place for all its uses.")
        if not (known and load.pinned):
            offsets.append(load.offset)
            life = (0, problem.steps - 1) if load.pinned else (load.after + 1, use.step)
            blocks.append(Block(use.bytes, *life))
    check_arena(blocks, Arena(tuple(offsets), plan.bytes, 0), problem.alignment)


def simulate(problem: Problem, plan: PreloadPlan, bandwidth: float) -> float:
    """Seconds of an inference.

    One loader reads what is not pinned, in the order of the uses: each begins when the one before is read and the
    step that it waits for is done. A step begins when the one before is done and its weights are read.
    """
    loads = [(use, load.after) for use, load in zip(problem.uses, plan.loads) if not load.pinned]
    steps, reads = [use.step for use, _ in loads], [use.bytes / bandwidth for use, _ in loads]
    return max(timeline(problem.seconds, steps, reads, [after for _, after in loads])[0], default=0.0)


class _Layouts:
    """Of one problem: made once, as a new budget may need a plan while a program runs."""

    def __init__(self, problem: Problem):
        blocks = [Block(tensor.bytes, tensor.first, tensor.last) for tensor in problem.tensors]
        blocks += [Block(use.bytes, use.step, use.step) for use in problem.uses]
        self.parts = Parts(blocks, problem.steps, problem.alignment)
        self.found: list[Layout] = []
        self.last: Layout | None = None

    def two_ends(self) -> Sequence[Layout]:
        """With a contiguous middle; the one that needs least first."""
        if not self.found:
            self.found = sorted(both_ends(self.parts), key=lambda layout: layout.bytes)
        return self.found

    def all(self) -> Sequence[Layout]:
        """And the one of last resort, unless the others cannot be bettered."""
        found = self.two_ends()
        if found[0].bytes == self.parts.bound:
            return found
        if self.last is None:
            self.last = last_resort(self.parts)
        return [*found, self.last]


@lru_cache(maxsize=4)
def _layouts(problem: Problem) -> _Layouts:
    return _Layouts(problem)


def _reading(problem: Problem, bandwidth: float) -> Reading:
    return Reading(
        len(problem.tensors),
        tuple(use.weight for use in problem.uses),
        tuple(use.step for use in problem.uses),
        tuple(use.bytes / bandwidth for use in problem.uses),
        tuple(problem.seconds),
    )


def _plan(problem: Problem, found: Found, bandwidth: float) -> PreloadPlan:
    first, offsets, after = len(problem.tensors), found.schedule.offsets, found.schedule.after
    loads = tuple(
        Load(found.pinned[use.weight], -1, True)
        if use.weight in found.pinned
        else Load(offsets[first + number], after[first + number], False)
        for number, use in enumerate(problem.uses)
    )
    sizes = {use.weight: aligned(use.bytes, problem.alignment) for use in problem.uses}
    total = found.top + sum(sizes[weight] for weight in found.pinned)
    return PreloadPlan(tuple(offsets[:first]), loads, total, found.seconds)


def _over_budget(problem: Problem, layout: Layout, budget: int) -> OverBudget:
    live = layout.parts.live
    step = max(range(problem.steps), key=lambda step: (layout.needs[step], int(live[step])))
    uses = [use for use in problem.uses if use.step == step and use.name]
    name = f" ({max(uses, key=lambda use: use.bytes).name})" if uses else ""
    needed = layout.needs[step]
    return OverBudget(
        f"step {step}{name} needs {needed} bytes of memory, of which its own tensors and weights are "
        f"{int(live[step])}; the budget is {budget} bytes.",
        step,
        needed,
    )

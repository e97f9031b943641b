# SPDX-License-Identifier: Apache-2.0
"""Plan networks larger than memory: weights are loaded while earlier steps compute (FlexNN 3.3, preload-aware)."""

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
    """An activation, or a workspace of one step.

    Attributes
    ----------
    bytes : int
        Size in bytes, more than 0.
    first, last : int
        The first and the last step, counted from 0, at which it is live; equal for a workspace.
    """

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Use:
    """The use of one weight by one step.

    Attributes
    ----------
    weight : int
        Number of the weight in the file; a weight that two steps read has two uses.
    bytes : int
        Size in bytes, more than 0, the same for each use of a weight.
    step : int
        The step that reads it.
    name : str
        Name of the layer, for messages.
    """

    weight: int
    bytes: int
    step: int
    name: str = ""


@dataclass(frozen=True)
class Problem:
    """A planning problem.

    Attributes
    ----------
    steps : int
        Number of steps.
    tensors : tuple of Tensor
        The tensors in any order.
    uses : tuple of Use
        The uses in the order of their steps, in which they are loaded.
    seconds : tuple of float
        Computing time of each step; estimates are enough.
    alignment : int
        Alignment of each offset in bytes. Sizes are rounded up to it.

    Raises
    ------
    ValueError
        If a size is not positive, a step does not exist, or uses are not in order.
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
    """The place of a weight, and the time of its load.

    Attributes
    ----------
    offset : int
        Offset in the arena, in bytes.
    after : int
        The step after which the load may begin, -1 for any time of the inference. The weight occupies its place from
        step ``after + 1`` to the step of its use.
    pinned : bool
        Whether it is loaded once and kept over inferences. It then occupies its place at all steps; `after` is -1.
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
        Offsets of the tensors.
    loads : tuple of Load
        Loads of the uses.
    bytes : int
        Size of the arena.
    seconds : float
        Seconds of an inference, by `simulate`.
    """

    offsets: tuple[int, ...]
    loads: tuple[Load, ...]
    bytes: int
    seconds: float


class OverBudget(ValueError):
    """A step does not fit into the budget.

    Attributes
    ----------
    step : int
        The step.
    needed : int
        Bytes of arena that it needs; with this budget, all steps fit.
    """

    def __init__(self, message: str, step: int, needed: int):
        super().__init__(message)
        self.step, self.needed = step, needed


def plan_preload(
    problem: Problem, budget: int, bandwidth: float, preload: bool = True, pin: bool = True, time_limit: float = 0.5
) -> PreloadPlan:
    """Plan places of tensors and weights, and times of loads, so that steps wait little for loads.

    Activations go to both ends of the arena, weights and workspaces between them, step by step (FlexNN 3.3.2,
    Algorithm 1). The remaining memory keeps weights that the steps would wait for; the paper does this only if all
    weights fit.

    Parameters
    ----------
    budget : int
        Largest size of the arena in bytes.
    bandwidth : float
        Bytes per second that one loader reads.
    preload : bool
        If False, a weight is loaded only when the step before its own is done.
    pin : bool
        If False, each weight is loaded in each inference.
    time_limit : float
        Seconds to search for a better plan than that of Algorithm 1 with the weights pinned first, and half as many to
        find more weights to pin. With 0, the plan depends only on the arguments.

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
    """Return the smallest budget for which `plan_preload` succeeds.

    It is the size of the smallest layout of activations without preloading: each step's weights then lie beside only
    that step's tensors, so no search is needed. A better planner might need less, but never less than `lower_bound`.
    """
    return min(layout.bytes for layout in _layouts(problem).all())


def lower_bound(problem: Problem) -> int:
    """Return the largest sum of live bytes of any step, with its weights."""
    return _layouts(problem).parts.bound


def check_preload(problem: Problem, plan: PreloadPlan, budget: int) -> None:
    """Prove that a plan is sound.

    Raises
    ------
    PlanError
        If two tensors or weights that are live at the same step share a byte; if one is not aligned or not within the
        arena, or the arena exceeds the budget; if a load waits for its own step or a later one; if a weight is pinned
        for only some of its uses, or at two places; or if an offset or a load is missing.
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
    """Return the seconds of an inference.

    One loader reads all weights that are not pinned, in the order of the uses. A load begins when the previous load and
    the step that it waits for are done. A step begins when the previous step is done and its weights are loaded.
    """
    loads = [(use, load.after) for use, load in zip(problem.uses, plan.loads) if not load.pinned]
    steps, reads = [use.step for use, _ in loads], [use.bytes / bandwidth for use, _ in loads]
    return max(timeline(problem.seconds, steps, reads, [after for _, after in loads])[0], default=0.0)


class _Layouts:
    """The layouts of one problem, computed once, as a running program may plan again with another budget."""

    def __init__(self, problem: Problem):
        blocks = [Block(tensor.bytes, tensor.first, tensor.last) for tensor in problem.tensors]
        blocks += [Block(use.bytes, use.step, use.step) for use in problem.uses]
        self.parts = Parts(blocks, problem.steps, problem.alignment)
        self.found: list[Layout] = []
        self.last: Layout | None = None

    def two_ends(self) -> Sequence[Layout]:
        """Return the layouts with a contiguous middle, the smallest first."""
        if not self.found:
            self.found = sorted(both_ends(self.parts), key=lambda layout: layout.bytes)
        return self.found

    def all(self) -> Sequence[Layout]:
        """Return all layouts: also the last resort, unless the smallest already reaches the lower bound."""
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

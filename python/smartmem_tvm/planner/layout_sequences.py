# SPDX-License-Identifier: Apache-2.0
"""FluidML's layout schedule: dynamic programming along the longest sequences of a graph (FluidML 3)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from .layout_problem import Choice, KernelCost, LayoutProblem, Order, Tensor

Path = list[KernelCost]


def fluid_layouts(problem: LayoutProblem) -> dict[Tensor, Order]:
    """The orders that FluidML's algorithms choose; never slower than those of now.

    1. The graph is taken apart into sequences (`sequences`, Algorithms 1 and 2).
    2. Each is scheduled alone (`schedule`, Algorithm 3), operands from elsewhere as they suit it.
    3. Where sequences want a tensor in different orders, the majority decides; of equals the order of now, if it is
       one of them. The sequences are scheduled again with what is decided.
    4. Beyond the paper: they are scheduled in turns, each between the others as they are now, as long as that gains.
    """
    found = sequences(problem.kernels)
    alone = [schedule(problem, each, {}) for each in found]
    decided = _majority(problem, alone)
    choice = dict(problem.now)
    for each in found:
        choice |= {k.output: order for k, order in _along(each, schedule(problem, each, decided))}
    choice |= decided
    if not problem.seconds(choice) <= problem.seconds(problem.now):
        choice = dict(problem.now)
    return _improved(problem, found, choice)


def sequences(kernels: Sequence[KernelCost]) -> list[Path]:
    """Longest sequences, each of what the ones before have left together (FluidML, Algorithm 2).

    Every kernel is in one of them.
    """
    parts, found = _components(kernels), []
    while parts:
        part = parts.pop()
        longest = longest_sequence(part)
        found.append(longest)
        parts += _components([kernel for kernel in part if kernel not in longest])
    return found


def longest_sequence(kernels: Sequence[KernelCost]) -> Path:
    """The longest way from kernel to kernel, each reading what the one before writes (FluidML, Algorithm 1).

    Parameters
    ----------
    kernels : sequence of KernelCost
        In the order of execution, so that one look at each is enough.
    """
    writers = {kernel.output: kernel for kernel in kernels}
    distance: dict[KernelCost, int] = {}
    before: dict[KernelCost, KernelCost] = {}
    for kernel in kernels:
        sources = [writers[tensor] for tensor in kernel.inputs if tensor in writers]
        farthest = max(sources, key=distance.__getitem__, default=None)
        distance[kernel] = 1 + (distance[farthest] if farthest else 0)
        if farthest:
            before[kernel] = farthest
    found = [max(kernels, key=distance.__getitem__)]
    while found[-1] in before:
        found.append(before[found[-1]])
    return found[::-1]


def _components(kernels: Sequence[KernelCost]) -> list[list[KernelCost]]:
    """Kernels in groups that nothing connects, in the order of execution."""
    group = {kernel: {kernel} for kernel in kernels}
    writers = {kernel.output: kernel for kernel in kernels}
    for kernel in kernels:
        for other in (writers[tensor] for tensor in kernel.inputs if tensor in writers):
            small, large = sorted((group[kernel], group[other]), key=len)
            if small is not large:
                large |= small
                group |= dict.fromkeys(small, large)
    members = {id(each): each for each in group.values()}
    return [[kernel for kernel in kernels if kernel in each] for each in members.values()]


def schedule(problem: LayoutProblem, sequence: Path, fixed: Choice) -> dict[tuple[KernelCost, Tensor], Order]:
    """The orders with which a sequence takes least (FluidML, Algorithm 3 and Equation 1).

    With T(e, l) for the least seconds in which tensor e is there in order l::

        T(e, l) = min over l' of T(e', l') + seconds of the kernel that makes e in l of e' in l'

    A kernel's other operands are in the fixed order, or else in whatever order suits it.

    Returns
    -------
    dict
        Kernel and tensor -> the order in which this kernel would have it; kernels that no order matters to are missing.
    """
    # Order of the tensor at hand -> seconds until it is there, and the orders of all kernels so far.
    reached: dict[Order | None, tuple[float, tuple]] = {None: (0.0, ())}
    previous: Tensor = None
    for kernel in sequence:
        step: dict[Order | None, tuple[float, tuple]] = {}
        for order in _orders(problem, kernel.output, fixed):
            ways = []
            for came, (seconds, trail) in reached.items():
                within = {**fixed, kernel.output: order, **({previous: came} if came is not None else {})}
                more, orders = kernel.best(within)
                ways.append((seconds + more, (trail, kernel, orders, order)))
            step[order] = min(ways, key=lambda each: each[0])
        reached, previous = step, kernel.output
    _, trail = min(reached.values(), key=lambda each: each[0])
    found = {}
    while trail:
        trail, kernel, orders, order = trail
        found |= {(kernel, tensor): each for tensor, each in zip(kernel.tensors, orders, strict=False)}
        found[kernel, kernel.output] = order
    return found


def _orders(problem: LayoutProblem, tensor: Tensor, fixed: Choice) -> Iterable[Order]:
    return (fixed[tensor],) if tensor in fixed else problem.orders[tensor]


def _along(sequence: Path, found: dict[tuple[KernelCost, Tensor], Order]) -> list[tuple[KernelCost, Order]]:
    """Each kernel of a sequence and the order of what it writes."""
    return [(kernel, found[kernel, kernel.output]) for kernel in sequence]


def _majority(problem: LayoutProblem, alone: Sequence[dict]) -> dict[Tensor, Order]:
    """The order of each tensor that kernels want in different ones; each has a vote."""
    votes: dict[Tensor, Counter] = {}
    for found in alone:
        for (_, tensor), order in found.items():
            votes.setdefault(tensor, Counter())[order] += 1
    torn = {tensor: count for tensor, count in votes.items() if len(count) > 1}
    return {
        tensor: max(problem.orders[tensor], key=lambda order, of=count: (of[order], order == problem.now[tensor]))
        for tensor, count in torn.items()
    }


def _improved(problem: LayoutProblem, found: Sequence[Path], choice: dict[Tensor, Order]) -> dict[Tensor, Order]:
    """The choice after scheduling each sequence between the others, until that gains nothing more."""
    best, gained = problem.seconds(choice), True
    while gained:
        gained = False
        for sequence in found:
            mine = {kernel.output for kernel in sequence}
            others = {tensor: order for tensor, order in choice.items() if tensor not in mine}
            new = {**choice, **{k.output: order for k, order in _along(sequence, schedule(problem, sequence, others))}}
            seconds = problem.seconds(new)
            if seconds < best and not math.isinf(seconds):
                best, choice, gained = seconds, new, True
        # A tensor of several readers is in no sequence with all of them.
        for tensor, orders in problem.orders.items():
            if len(orders) > 1:
                order, seconds = min(problem.alternatives(tensor, choice).items(), key=lambda each: each[1])
                if seconds < best * (1 - 1e-9):
                    best, choice, gained = seconds, {**choice, tensor: order}, True
    return choice

# SPDX-License-Identifier: Apache-2.0
"""FluidML's layout schedule: dynamic programming along the longest sequences of a graph (FluidML 3)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from .layout_problem import Choice, KernelCost, LayoutProblem, Order, Tensor

Path = list[KernelCost]


def fluid_layouts(problem: LayoutProblem) -> dict[Tensor, Order]:
    """Return the orders that FluidML's algorithms choose; never slower than the present ones.

    1. The graph is split into sequences (`sequences`, Algorithms 1 and 2).
    2. Each sequence is scheduled alone (`schedule`, Algorithm 3), with outside operands in the orders that suit it.
    3. If sequences choose different orders for a tensor, the majority decides; in a tie, the present order wins if it
       is among them. The sequences are scheduled again with these orders fixed.
    4. Beyond the paper: the sequences are scheduled in turns, each with the present choice of the others, as long as
       that gains time.
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
    """Split a graph into longest sequences (FluidML, Algorithm 2).

    Each sequence is the longest one of a connected part that the earlier sequences have left. Every kernel is in one of
    them.
    """
    parts, found = _components(kernels), []
    while parts:
        part = parts.pop()
        longest = longest_sequence(part)
        found.append(longest)
        parts += _components([kernel for kernel in part if kernel not in longest])
    return found


def longest_sequence(kernels: Sequence[KernelCost]) -> Path:
    """Return the longest path of kernels, each reading its predecessor's output (FluidML, Algorithm 1).

    Parameters
    ----------
    kernels : sequence of KernelCost
        The kernels in the order of execution, so that one visit of each is enough.
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
    """Return the connected components of the graph, each in the order of execution."""
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
    """Return the orders with the least time of a sequence (FluidML, Algorithm 3 and Equation 1).

    With T(e, l) for the least seconds to compute tensor e in order l::

        T(e, l) = min over l' of T(e', l') + seconds of the kernel that makes e in l of e' in l'

    A kernel's other operands have their fixed order, or else the order that suits the kernel best.

    Returns
    -------
    dict
        Kernel and tensor -> the order that suits this kernel; kernels without a choice of orders are missing.
    """
    # Order of the current tensor -> seconds until it is computed, and the orders of all kernels so far.
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
    """Return each kernel of a sequence with the order of its output."""
    return [(kernel, found[kernel, kernel.output]) for kernel in sequence]


def _majority(problem: LayoutProblem, alone: Sequence[dict]) -> dict[Tensor, Order]:
    """Return the majority's order for each tensor that kernels want in different orders; each kernel has one vote."""
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
    """Improve a choice by scheduling each sequence with the others fixed, until nothing is gained."""
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
        # No sequence contains all readers of a tensor with several readers, so such tensors are also tried one by one.
        for tensor, orders in problem.orders.items():
            if len(orders) > 1:
                order, seconds = min(problem.alternatives(tensor, choice).items(), key=lambda each: each[1])
                if seconds < best * (1 - 1e-9):
                    best, choice, gained = seconds, {**choice, tensor: order}, True
    return choice

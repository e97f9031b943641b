# SPDX-License-Identifier: Apache-2.0
"""The work of a plan on a CPU: how often each unit of `cost` occurs, by terms, and on how many threads.

`Done` is how often a unit occurs. A rule lists them by the names under which ``smartmem explain --why`` prints their
cycles:

    Work(params, {"multiply-adds": [(steps, Fma(6, 4))], "copies": [(elements, Copied(run=16))]}).price

`Threads` says how many tasks the busiest thread runs, by which a rule multiplies the work of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from ..core.plans import Price
from .cost import WOKEN, WOKEN_AT_POINTS
from .params import CpuParams


class WorkUnit(Protocol):
    """A piece of work that is counted; it is plain data, and can be compared and hashed."""

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of one such piece on a core."""


Done = tuple[float, WorkUnit]
"""How often a unit occurs, and the unit."""


class Rates:
    """The cycles of units on one processor, each looked up once.

    Parameters
    ----------
    params : CpuParams
        The processor.
    """

    def __init__(self, params: CpuParams):
        self.params = params
        self._known: dict[WorkUnit, float] = {}

    def of(self, unit: WorkUnit) -> float:
        """Return the cycles of one unit."""
        each = self._known.get(unit)
        if each is None:
            each = self._known[unit] = unit.cycles(self.params)
        return each

    def sum_of(self, done: Iterable[Done]) -> float:
        """Return the cycles of units, each as often as it occurs."""
        of = self.of
        return sum([number * of(unit) for number, unit in done])

    def until_last(
        self, threads: Threads, tasks: Sequence[float], batch: int = 1, before: Iterable[Done] = ()
    ) -> float:
        """Return when the last thread finishes `batch` times some tasks of given cycles, and the work before them."""
        each = threads.rounds(batch * len(tasks))
        if each >= len(tasks):
            return sum(tasks) * each / len(tasks) + self.sum_of(before)
        shares = tasks if batch == 1 else [*tasks, *tasks]
        busiest = max(sum(shares[first : first + each]) for first in range(0, len(tasks), each))
        return busiest + self.sum_of(before)

    def until_last_of(self, threads: Threads, number: int, task: Iterable[Done]) -> float:
        """Return when the last thread finishes a number of equal tasks."""
        return threads.rounds(number) * self.sum_of(task)


@dataclass(frozen=True)
class Work:
    """The work of a plan, or of a task of it.

    Attributes
    ----------
    params : CpuParams
        The processor.
    parts : mapping of str to sequence of Done
        The units by the names of terms.
    longer : mapping of str to float
        Term -> the fraction by which everything takes longer, such as of threads that wait for the last one.
    shared : int
        The number of cores among which the work is divided; 1 if it is that of the core that finishes last.
    """

    params: CpuParams
    parts: Mapping[str, Sequence[Done]]
    longer: Mapping[str, float] = field(default_factory=dict)
    shared: int = 1

    @cached_property
    def price(self) -> Price:
        """The price by terms."""
        rates = Rates(self.params)
        terms = {name: rates.sum_of(done) for name, done in self.parts.items()}
        total = sum(terms.values())
        terms |= {name: total * fraction for name, fraction in self.longer.items()}
        return Price(total * (1.0 + sum(self.longer.values())), terms, shared=self.shared)


@dataclass(frozen=True)
class Threads:
    """Threads that share the tasks of a parallel loop, each of them the same number of tasks in their order.

    Attributes
    ----------
    count : int
        Number of threads.
    """

    count: int

    def rounds(self, tasks: int) -> int:
        """Return the number of tasks of the thread that has most of them."""
        return -(-tasks // self.count)

    def share(self, tasks: int) -> float:
        """Return the busiest thread's share of equal tasks, from 0 to 1."""
        return self.rounds(tasks) / tasks

    def woken(self, loops: float = 1) -> Done:
        """Return the threads that some parallel loops wake; none if there is only one thread."""
        return (loops * self.count if self.count > 1 else 0), WOKEN

    def woken_at_points(self, loops: float = 1) -> Done:
        """Return the same for a Winograd convolution."""
        return self.woken(loops)[0], WOKEN_AT_POINTS

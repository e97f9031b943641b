# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families, cut into runs of stages that one rule takes each, in sequence in one function.

For example, a padded copy in front of a convolution is an element-wise nest, then a contraction. The tensors between
runs are buffers that the kernel allocates for each call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

from tvm import tirx
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ...ir.kernel import Kernel, Opaque, Stage, parse
from .decisions import attempt, declined
from .nest import block
from .rule import RULE, FinishedSchedule, Rule, finished


class SequenceRule(Rule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first.

    Attributes
    ----------
    takes_whole : bool
        A run may be the whole kernel, because one of `rules` has not been tried on it before.
    """

    takes_whole = False

    def __init__(self, rules: Sequence[Rule]):
        self.rules = list(rules)

    def apply(self, func: tirx.PrimFunc, target: Target) -> FinishedSchedule | None:
        """Schedule `func`, or return None if the target is of another kind or no rule takes some stage."""
        found = self.function(func, target)
        return None if found is None else FinishedSchedule.of(found)

    def function(self, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
        """Return the same as a PrimFunc that no `FinishedSchedule` holds yet."""
        if not self.runs_on(target):
            return None
        try:
            kernel = self.prepare(parse(func))
        except Opaque as reason:
            return declined(str(reason))
        nests, buffers, rules, rest = [], [], [], list(kernel.stages)
        while rest:
            found = self._longest(func, kernel, rest, target)
            if found is None:
                return declined(f"no rule takes a run of stages that begins with '{rest[0].name}'")
            length, nest, allocated, rule = found
            nests.append(nest)
            buffers += allocated
            rules.append(rule)
            rest = rest[length:]
        result = finished(func, kernel, block(*nests), buffers)
        return result.with_attr(RULE, self.record_with(rules))

    def _longest(self, func: tirx.PrimFunc, kernel: Kernel, rest: list[Stage], target: Target):
        most = len(kernel.stages) if self.takes_whole else len(kernel.stages) - 1
        for length in range(min(len(rest), most), 0, -1):
            run = run_of(kernel, rest[:length], rest[length:])
            for rule in self.rules:
                try:
                    found = attempt(partial(self.nest_of, rule, run, func, target))
                except ScheduleError:
                    continue
                if found is not None:
                    return length, *found, rule
        return None

    @abstractmethod
    def runs_on(self, target: Target) -> bool:
        """Whether the rule is for targets of this kind."""

    @abstractmethod
    def prepare(self, kernel: Kernel) -> Kernel:
        """Return the kernel to be cut, with element-wise stages folded into their readers."""

    @abstractmethod
    def nest_of(self, rule: Rule, run: Kernel, func: tirx.PrimFunc, target: Target) -> tuple[tirx.Stmt, list] | None:
        """Return the loop nest of a run of stages of `func` by `rule`, and the buffers that it allocates, or None."""

    def record_with(self, rules: Sequence[Rule]) -> dict:
        """Return the value of the attribute `RULE` of a kernel whose runs these rules have scheduled."""
        return self.record


def run_of(kernel: Kernel, stages: Sequence[Stage], later: Sequence[Stage] = ()) -> Kernel:
    """Return some stages as a kernel; its outputs are the buffers that `later` stages read or the kernel outputs."""
    written = [buffer for stage in stages for buffer in stage.outputs]
    read = [load.source for stage in stages for load in stage.loads]
    wanted = [*kernel.outputs, *(load.source for stage in later for load in stage.loads)]
    inputs = [b for b in (*kernel.inputs, *kernel.intermediates) if _is_in(b, read) and not _is_in(b, written)]
    return Kernel(tuple(_once(inputs)), tuple(_once([b for b in written if _is_in(b, wanted)])), tuple(stages))


def _once(buffers: list) -> list:
    return [b for n, b in enumerate(buffers) if not _is_in(b, buffers[:n])]


def _is_in(buffer, buffers) -> bool:
    return any(buffer.same_as(b) for b in buffers)

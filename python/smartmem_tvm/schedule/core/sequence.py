# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families: cut into runs of stages that some rule knows, one after the other in one function.

A padded copy before a convolution is such a case: an element-wise nest, then a contraction. What passes between the
runs stays in buffers allocated for the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ...ir.kernel import Kernel, Opaque, Stage, parse
from .decisions import attempt
from .nest import block
from .rule import RULE, NestRule, TargetRule, finished


class SequenceRule(TargetRule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first.

    Attributes
    ----------
    takes_whole : bool
        A run may be the whole kernel: one of the rules has not been asked about it.
    prepares_runs : bool
        A rule prepares its run again, in its own way.
    """

    takes_whole = False
    prepares_runs = False

    def __init__(self, rules: Sequence[NestRule]):
        super().__init__()
        self.rules = list(rules)

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or None if the target is of another kind or some stage is known to no rule."""
        if not self.runs_on(target):
            return None
        try:
            kernel = self.prepare(parse(func))
        except Opaque:
            return None
        nests, rules, rest = [], [], list(kernel.stages)
        while rest:
            length, nest, rule = self._longest(kernel, rest, target)
            if rule is None:
                return None
            nests.append(nest)
            rules.append(rule)
            rest = rest[length:]
        result = finished(func, kernel, block(*nests))
        return s_tir.Schedule(result.with_attr(RULE, self.record_with(rules)))

    def record_with(self, rules: Sequence[NestRule]) -> dict:
        """What is noted on a kernel whose runs these rules have scheduled."""
        return self.record

    def _longest(self, kernel: Kernel, rest: list[Stage], target: Target):
        most = len(kernel.stages) if self.takes_whole else len(kernel.stages) - 1
        for length in range(min(len(rest), most), 0, -1):
            run = _run(kernel, rest[:length], rest[length:])
            for rule in self.rules:
                try:
                    nest = attempt(partial(rule.nest, run, target, prepared=not self.prepares_runs))
                except ScheduleError:
                    continue
                if nest is not None:
                    return length, nest, rule
        return 0, None, None


def _run(kernel: Kernel, stages: list[Stage], later: list[Stage]) -> Kernel:
    """Some stages as a kernel of their own: reads what earlier ones wrote, writes what later ones read."""
    written = [buffer for stage in stages for buffer in stage.outputs]
    read = [load.source for stage in stages for load in stage.loads]
    wanted = [*kernel.outputs, *(load.source for stage in later for load in stage.loads)]
    inputs = [b for b in (*kernel.inputs, *kernel.intermediates) if _is_in(b, read) and not _is_in(b, written)]
    return Kernel(tuple(_once(inputs)), tuple(_once([b for b in written if _is_in(b, wanted)])), tuple(stages))


def _once(buffers: list) -> list:
    return [b for n, b in enumerate(buffers) if not _is_in(b, buffers[:n])]


def _is_in(buffer, buffers) -> bool:
    return any(buffer.same_as(b) for b in buffers)

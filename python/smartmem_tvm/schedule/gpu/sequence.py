# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families on a GPU: cut into runs of stages that some rule knows, one launch each.

Two matmuls that end in one product are such a case: no rule tiles both, each knows how to tile one with what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ...ir.kernel import Kernel, Opaque, Stage, emit, parse
from ...target import is_gpu
from ..core.decisions import attempt
from ..core.nest import block
from ..core.rule import Rule
from ..core.split_tuples import split_tuples
from .fold import fold


class GpuSequence(Rule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first.

    Parameters
    ----------
    rules : sequence of Rule
        None of them a catch-all: one that answered for everything would leave nothing to cut.
    """

    def __init__(self, rules: Sequence[Rule]):
        self.rules = list(rules)

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or None if the target is no GPU or some stage is known to no rule."""
        if not is_gpu(target):
            return None
        try:
            kernel = fold(split_tuples(parse(func)))
        except Opaque:
            return None
        bodies, between, rest = [], [], list(kernel.stages)
        while rest:
            found = self._longest(kernel, rest, dict(func.attrs or {}), target)
            if found is None:
                return None
            length, part, root = found
            bodies.append(root.body)
            between += [*root.alloc_buffers, *(b for b in part.outputs if not _is_in(b, kernel.outputs))]
            rest = rest[length:]
        whole = s_tir.SBlock([], [], [], "root", block(*bodies), alloc_buffers=between)
        return s_tir.Schedule(func.with_body(s_tir.SBlockRealize([], True, whole)).with_attr("tirx.noalias", True))

    def _longest(self, kernel: Kernel, rest: list[Stage], attrs: dict, target: Target):
        for length in range(min(len(rest), len(kernel.stages) - 1), 0, -1):
            part = _part(kernel, rest[:length], rest[length:])
            for rule in self.rules:
                try:
                    found = attempt(partial(rule.apply, emit(part, attrs), target))
                except ScheduleError:
                    continue
                if found is not None:
                    return length, part, found.mod["main"].body.block
        return None


def _part(kernel: Kernel, stages: list[Stage], later: list[Stage]) -> Kernel:
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

# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families: cut into runs of stages that some rule knows, one after the other in one function.

A padded copy before a convolution is such a case: an element-wise nest, then a contraction. What passes between the
runs stays in buffers allocated for the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import tirx

from ...ir.kernel import Kernel, Stage
from ..cpu.params import CpuParams
from .decisions import attempt
from .nest import block
from .rule import CpuRule


class InSequence(CpuRule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first."""

    def __init__(self, rules: Sequence[CpuRule], params: CpuParams | None = None):
        super().__init__(params)
        self.rules = list(rules)
        self._asked: list[CpuRule] = []  # what scheduled the runs of the last kernel

    @property
    def name(self) -> str:
        """The rules of the last kernel's runs, in their order."""
        return " + ".join(rule.name for rule in self._asked) or super().name

    @property
    def family(self) -> str:
        """What these rules are for."""
        return "; then ".join(rule.family for rule in self._asked) or super().family

    @property
    def catch_all(self) -> bool:
        """Whether one of them was a catch-all."""
        return any(rule.catch_all for rule in self._asked)

    def lower(self, kernel: Kernel, params: CpuParams) -> tirx.Stmt | None:
        """Schedule the kernel, or None if some stage is known to no rule."""
        statements, rest = [], list(kernel.stages)
        self._asked = []
        while rest:
            length, nest, rule = self._longest(kernel, rest, params)
            if rule is None:
                return None
            statements.append(nest)
            self._asked.append(rule)
            rest = rest[length:]
        return block(*statements)

    def _longest(self, kernel: Kernel, rest: list[Stage], params: CpuParams):
        for length in range(len(rest), 0, -1):
            part = _part(kernel, rest[:length], rest[length:])
            for rule in self.rules:
                nest = attempt(partial(rule.lower, part, params))
                if nest is not None:
                    return length, nest, rule
        return 0, None, None


def _part(kernel: Kernel, stages: list[Stage], later: list[Stage]) -> Kernel:
    """Some stages as a kernel of their own: what later stages read is an output."""
    written = [buffer for stage in stages for buffer in stage.outputs]
    read_later = [load.source for stage in later for load in stage.loads]
    outputs = [b for b in written if any(b.same_as(o) for o in (*kernel.outputs, *read_later))]
    unique = [b for n, b in enumerate(outputs) if not any(b.same_as(o) for o in outputs[:n])]
    return Kernel(kernel.inputs, tuple(unique), tuple(stages))

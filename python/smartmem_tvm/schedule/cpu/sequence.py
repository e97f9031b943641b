# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families on a CPU: one loop nest after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.target import Target

from ...ir.kernel import Kernel
from ..core.rule import Rule
from ..core.sequence import SequenceRule
from .rule import CpuRule


class InSequence(SequenceRule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first."""

    takes_whole = True  # only this rule tries the fallback, so a run may be the whole kernel
    runs_on, prepare = CpuRule.runs_on, CpuRule.prepare

    def nest_of(self, rule: CpuRule, run: Kernel, func: tirx.PrimFunc, target: Target) -> tuple[tirx.Stmt, list] | None:
        """Return the nest of a run without folding it again, which might change it, as its readers are missing."""
        nest = rule.nest(run, target, prepared=True)
        return None if nest is None else (nest, [])

    def record_with(self, rules: Sequence[Rule]) -> dict:
        """Return the rules of the runs, in their order."""
        return {
            "name": " + ".join(rule.name for rule in rules),
            "family": "; then ".join(rule.family for rule in rules),
            "catch_all": any(rule.catch_all for rule in rules),
        }

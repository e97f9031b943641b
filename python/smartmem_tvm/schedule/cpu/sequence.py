# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families on a CPU: one loop nest after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.rule import NestRule
from ..core.sequence import SequenceRule
from .rule import OnCpu


class InSequence(OnCpu, SequenceRule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first."""

    takes_whole = True  # the fallback is among its rules only

    def record_with(self, rules: Sequence[NestRule]) -> dict:
        """The rules of the runs, in their order."""
        return {
            "name": " + ".join(rule.name for rule in rules),
            "family": "; then ".join(rule.family for rule in rules),
            "catch_all": any(rule.catch_all for rule in rules),
        }

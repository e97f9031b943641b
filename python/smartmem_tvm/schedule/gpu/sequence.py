# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families on a GPU: one launch after the other.

Two matmuls that end in one product are such a case: no rule tiles both, each knows how to tile one with what follows.
"""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from ...ir.kernel import Kernel, emit
from ..core.rule import Rule
from ..core.sequence import SequenceRule
from .launch import GpuRule


class GpuSequence(SequenceRule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first."""

    runs_on, prepare = GpuRule.runs_on, GpuRule.prepare

    def nest_of(self, rule: Rule, run: Kernel, func: tirx.PrimFunc, target: Target) -> tuple[tirx.Stmt, list] | None:
        """What a rule makes of a run as a kernel of its own: windows are folded in another way than other runs."""
        found = rule.apply(emit(run, dict(func.attrs or {})), target)
        if found is None:
            return None
        root = found.mod["main"].body.block
        return root.body, list(root.alloc_buffers)

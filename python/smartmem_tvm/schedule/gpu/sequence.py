# SPDX-License-Identifier: Apache-2.0
"""Kernels that need several rules on a GPU: one launch after the other.

Two matmuls whose results are multiplied are an example: no rule tiles both, but a rule tiles each with its epilogue.
"""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from ...ir.kernel import KEY_AXIS, Kernel, emit
from ..core.rule import Rule
from ..core.sequence import SequenceRule
from .launch import GpuRule


class GpuSequence(SequenceRule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first."""

    runs_on, prepare = GpuRule.runs_on, GpuRule.prepare

    def nest_of(self, rule: Rule, run: Kernel, func: tirx.PrimFunc, target: Target) -> tuple[tirx.Stmt, list] | None:
        """Return the nest and buffers of a run, scheduled as a kernel of its own: window rules fold differently."""
        attrs = {key: value for key, value in (func.attrs or {}).items() if key != KEY_AXIS}  # a run has no length
        found = rule.apply(emit(run, attrs), target)
        if found is None:
            return None
        root = found.mod["main"].body.block
        return root.body, list(root.alloc_buffers)

# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families on a GPU: one launch after the other.

Two matmuls that end in one product are such a case: no rule tiles both, each knows how to tile one with what follows.
"""

from __future__ import annotations

from ..core.sequence import SequenceRule
from .launch import OnGpu


class GpuSequence(OnGpu, SequenceRule):
    """Schedules what no single rule takes as a whole, with the longest prefix that one of `rules` takes first."""

    prepares_runs = True  # windows fold what other rules leave

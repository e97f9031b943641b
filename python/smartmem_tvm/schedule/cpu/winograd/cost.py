# SPDX-License-Identifier: Apache-2.0
"""A model of the cycles of a convolution by Winograd's transforms, and of the plain convolution.

Its constants are fitted to measurements of `benchmarks/winograd.py` with AVX-512; docs/cpu.md has the table. A core
multiplies and adds 16 numbers per cycle: one vector of AVX-512 on AMD's Zen 4, two of AVX2, four of NEON.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ...core.plans import Price
from ..machine import (
    FIRST_LEVEL_BYTES,
    FLOAT_BYTES,
    FMA_LANES,
    PLAIN_CONVOLUTION,
    PLANE_COPY,
    SECOND_LEVEL_BYTES,
    SPILL_RATE,
    TRANSFORM,
)
from ..params import CpuParams
from .plan import WinogradPlan
from .shape import Windows
from .transforms import WINDOW

_CACHED_BYTES = SECOND_LEVEL_BYTES // 2  # of weights that are still in the cache from the last inference
# Share of the plain convolution's cycles. Chosen: transformed weights take 1.8 or four times the memory, and a small
# gain is not worth that (2026-11-25).
_GAIN = 0.8


def worth(plans: Iterable[WinogradPlan]) -> list[WinogradPlan]:
    """Return the plans that are faster than the plain convolution, the fastest first."""
    timed = sorted(((cycles(plan), plan) for plan in plans), key=lambda pair: pair[0])
    return [plan for time, plan in timed if time < _GAIN * plain_cycles(plan.windows, plan.params, plan.threads)]


def cycles(plan: WinogradPlan) -> float:
    """Return the cycles until a convolution by Winograd's transforms finishes."""
    products, transforms, weights = _terms(plan)
    return products + transforms + weights


def price(plan: WinogradPlan) -> Price:
    """Return the same by terms, in cycles of the core that finishes last."""
    names = "products at all points", "transforms and copies", "weights from memory"
    return Price(cycles(plan), dict(zip(names, _terms(plan), strict=True)))


def _terms(plan: WinogradPlan) -> tuple[float, float, float]:
    blocks = plan.pictures * plan.blocks
    product = plan.division.cycles * plan.params.lanes / FMA_LANES
    strips, lines = plan.rows * plan.strips, plan.rows * plan.result
    each = max(TRANSFORM * plan.points, _spilled(plan))
    copy = PLANE_COPY if plan.copies else 0.0
    into = plan.channels * (strips * each + (lines + 2) * (plan.sizes[1] + 2) * copy)
    back = plan.filters * (strips * each + lines * plan.sizes[1] * copy)
    weights = plan.points * plan.channels * plan.panels * plan.panel * plan.windows.extent(plan.windows.groups)
    return product, blocks * (into + back) * plan.division.share, _fetch(weights, plan.params)


def plain_cycles(windows: Windows, params: CpuParams, cores: int = 1) -> float:
    """Return the cycles until a plain convolution finishes, at its best: register tiles over lines of the picture."""
    extents, lanes = windows.contraction.reduction.extents, params.lanes
    high, wide = (extents[v] for v in windows.image.columns)
    vectors = -(-((high - 1) * (wide + WINDOW - 1) + wide) // lanes)
    vectors = high * wide / lanes if windows.innermost else min(vectors, high * -(-wide // lanes))
    weights = prod(windows.extent(v) for v in (windows.channels, windows.contraction.rows)) * WINDOW**2
    product = PLAIN_CONVOLUTION * windows.extent(windows.outer) * weights * vectors * lanes / FMA_LANES
    return product / cores + _fetch(weights * windows.extent(windows.groups), params)


def _spilled(plan: WinogradPlan) -> float:
    """Return the cycles to write a vector of transformed tiles behind the first-level cache; 0 if a block fits."""
    of_block = plan.points * plan.channels * plan.pitch * FLOAT_BYTES
    return plan.points * plan.lanes * FLOAT_BYTES / SPILL_RATE if of_block > FIRST_LEVEL_BYTES else 0.0


def _fetch(weights: int, params: CpuParams) -> float:
    return max(0, weights * FLOAT_BYTES - _CACHED_BYTES) / params.memory_bytes

# SPDX-License-Identifier: Apache-2.0
"""The work of a convolution by Winograd's transforms, and of the plain convolution, as the model of time counts it.

Both were fitted to measurements of `benchmarks/winograd.py` with AVX-512; docs/cpu.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ..cost import STRIDED, FromMemory, Transformed, UntiledFma
from ..machine import FIRST_LEVEL_BYTES, FLOAT_BYTES, SECOND_LEVEL_BYTES
from ..params import CpuParams
from ..priced_work import Done, Work
from .plan import WinogradPlan
from .shape import Windows
from .transforms import WINDOW

_CACHED_BYTES = SECOND_LEVEL_BYTES // 2  # of weights that are still in the cache from the last inference
# Share of the plain convolution's cycles. Chosen: transformed weights take 1.8 or four times the memory, and a small
# gain is not worth that (2026-11-25).
_GAIN = 0.8


def worth(plans: Iterable[WinogradPlan]) -> list[WinogradPlan]:
    """Return the plans that are faster than the plain convolution, the fastest first."""
    timed = sorted(((work(plan).price.cycles, plan) for plan in plans), key=lambda pair: pair[0])
    return [plan for time, plan in timed if time < _GAIN * plain(plan.windows, plan.params, plan.threads).price.cycles]


def work(plan: WinogradPlan) -> Work:
    """Return the work of a convolution by Winograd's transforms, of the core that finishes last."""
    share = plan.pictures * plan.blocks * plan.division.share
    lines, columns = plan.rows * plan.result, plan.sizes[1]
    transforms: list[Done] = [
        (share * (plan.channels + plan.filters) * plan.rows * plan.strips * plan.points, _transformed(plan))
    ]
    if plan.copies:
        pixels = plan.channels * (lines + 2) * (columns + 2) + plan.filters * lines * columns
        transforms.append((share * pixels, STRIDED))
    weights = plan.points * plan.channels * plan.panels * plan.panel * plan.windows.extent(plan.windows.groups)
    own = {"transforms and copies": transforms, "weights from memory": [_weights(weights)]}
    return Work(plan.params, {**plan.division.work, **own})


def plain(windows: Windows, params: CpuParams, cores: int) -> Work:
    """Return the work of a plain convolution, at its best: register tiles over lines of the picture."""
    extents, lanes = windows.contraction.reduction.extents, params.lanes
    high, wide = (extents[v] for v in windows.image.columns)
    vectors = -(-((high - 1) * (wide + WINDOW - 1) + wide) // lanes)
    vectors = high * wide / lanes if windows.innermost else min(vectors, high * -(-wide // lanes))
    weights = prod(windows.extent(v) for v in (windows.channels, windows.contraction.rows)) * WINDOW**2
    products = windows.extent(windows.outer) * weights * vectors / cores, UntiledFma()
    fetched = _weights(weights * windows.extent(windows.groups))
    return Work(params, {"products": [products], "weights from memory": [fetched]})


def _transformed(plan: WinogradPlan) -> Transformed:
    """Return a vector of transformed tiles, which are far if those of a block do not fit in the first-level cache."""
    of_block = plan.points * plan.channels * plan.pitch * FLOAT_BYTES
    return Transformed(plan.lanes, of_block > FIRST_LEVEL_BYTES)


def _weights(number: int) -> Done:
    return max(0, number * FLOAT_BYTES - _CACHED_BYTES), FromMemory()

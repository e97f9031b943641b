# SPDX-License-Identifier: Apache-2.0
"""How many items of an open batch a tile computes together: a model of the time of a tile."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from ..target import is_cuda, is_gpu

# Items of tiles, powers of 2 and numbers half-way. Chosen: with padding to the next one at most a third of a tile's
# items is for nothing. 64 is the largest as weights are then read seldom enough (`_WEIGHT`).
_TILES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# Steps of sums that take as long as reading a weight once for each tile: a model of time of one tile. Assumed.
_WEIGHT = 12
# Steps of sums that take as long as a launch, and as a kernel that has too little work for the whole device. Assumed:
# 0.5 microseconds of a core, 4 microseconds of 20 steps each picosecond on a data center's GPU, and 20 microseconds of
# 0.5 steps each picosecond on a phone's.
_KERNEL, _CUDA_KERNEL, _GPU_KERNEL = 20_000, 80_000_000, 10_000_000
# The share of a tile's time up to which reading weights and launches do not matter: no larger tile is made then.
# Chosen: half of what an open dimension may cost beside a fixed one.
_ENOUGH = 0.08
Work = Sequence[int]
"""Steps of sums for one item, elements of the weights, and kernels (`analysis.items.ItemWork.per_item`)."""


def tiles(most: int) -> list[int]:
    """Return the numbers of items that tiles may have, ascending.

    Parameters
    ----------
    most : int
        The most items that a caller has.
    """
    return [items for items in _TILES if items <= max(most, _TILES[0])]


def tile_cost(work: Work, items: int, target: tvm.target.Target | None = None) -> int:
    """Return the predicted time of a tile on a target, by default a CPU, in steps of sums."""
    return items * work[0] + _once(work, target)


def tile_items(work: Work, most: int, target: tvm.target.Target | None = None) -> list[int]:
    """Return the numbers of items of the tiles that a target gains by, ascending.

    Parameters
    ----------
    most : int
        The most items that a caller has.
    """
    found = []
    for items in tiles(most):
        found.append(items)
        if _once(work, target) <= _ENOUGH * tile_cost(work, items, target):
            break
    return found


def _once(work: Work, target: tvm.target.Target | None) -> int:
    """Return what a tile takes for any number of items: its weights are read, its kernels launched."""
    _, weights, kernels = work
    launch = _KERNEL if target is None or not is_gpu(target) else _CUDA_KERNEL if is_cuda(target) else _GPU_KERNEL
    return _WEIGHT * weights + launch * kernels

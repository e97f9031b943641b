# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a tile of items, in steps of sums: which tiles a model with items needs."""

from __future__ import annotations

import tvm

from ..planner.tiles import cover
from ..target import is_cuda, is_gpu
from .items import ItemWork

# Items of tiles, powers of 2 and numbers half-way. Chosen: with padding to the next one at most a third of a tile's
# items is for nothing. 64 is the largest as weights are then read seldom enough (`WEIGHT`).
_TILES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# Steps of sums that take as long as reading a weight once: sums with more steps for a weight do not wait for weights.
# Measured: BERT on one thread of an AMD EPYC with AVX2 takes 8.4 ms for 16 rows, 57 MB of weights, and 33e9 steps per
# second for 64 and more (2026-11-29).
WEIGHT = 20
# Steps of sums that take as long as a launch, and as a kernel that has too little work for the whole device. Assumed:
# 0.5 microseconds of a core, 5 microseconds of each core where a kernel wakes several, 4 microseconds of 20 steps each
# picosecond on a data center's GPU, and 20 microseconds of 0.5 steps each picosecond on a phone's.
_KERNEL, _THREADS, _CUDA_KERNEL, _GPU_KERNEL = 20_000, 200_000, 80_000_000, 10_000_000
# Steps of sums that take as long as copying a number. Measured: 132,500 numbers of a result take 32 us, and 73,700 of
# an input 16 us, where PP-OCRv4's recognizer makes 50,000 steps in a microsecond (AMD EPYC with AVX-512, 2026-11-30).
COPIED = 12
# The share of a tile's time up to which reading weights and launches do not matter: no larger tile is made then.
# Chosen: half of what an open dimension may cost beside a fixed one.
_ENOUGH = 0.08
MORE = 1.02  # chosen: what a size may take, beside a function of its own, when functions of other sizes compute it


def tiles(most: int) -> list[int]:
    """Return the numbers of items that tiles may have, ascending.

    Parameters
    ----------
    most : int
        The most items that a caller has.
    """
    return [items for items in _TILES if items <= max(most, _TILES[0])]


def cost(work: ItemWork, items: int, target: tvm.target.Target | None = None) -> int:
    """Return the predicted time of a tile on a target, by default a CPU, in steps of sums."""
    sums = sum(max(items * steps, WEIGHT * weights) for steps, weights in work.sums)
    return sums + launch(target) * work.kernels


def launch(target: tvm.target.Target | None) -> int:
    """Return the steps of all cores together that a launch takes."""
    if target is not None and is_gpu(target):
        return _CUDA_KERNEL if is_cuda(target) else _GPU_KERNEL
    cores = 1 if target is None else int(target.attrs.get("num-cores") or 1)
    return _KERNEL if cores == 1 else _THREADS * cores


def tile_items(work: ItemWork, most: int, target: tvm.target.Target | None = None) -> list[int]:
    """Return the numbers of items of the tiles that a target gains by, ascending.

    Parameters
    ----------
    most : int
        The most items that a caller has.
    """
    found = []
    for items in tiles(most):
        found.append(items)
        whole = cost(work, items, target)
        if whole - items * sum(steps for steps, _ in work.sums) <= _ENOUGH * whole:
            break
    return found


def covers(
    work: ItemWork, counts: list[int], copied: int, target: tvm.target.Target | None = None
) -> dict[int, tuple[int, ...]]:
    """Return the numbers of items that tiles of other numbers compute in nearly the same time.

    Parameters
    ----------
    counts : list of int
        The numbers of items that a model is called with.
    copied : int
        Numbers in the inputs and outputs of an item, which go to and from the tiles.

    Returns
    -------
    dict
        Number of items -> tiles that have as many together, each a number of `counts` that is no key.
    """
    found: dict[int, tuple[int, ...]] = {}
    costs: dict[int, int] = {}
    for count in sorted(counts):
        alone, parts = cost(work, count, target), cover(count, costs, exact=True)
        if parts and sum(costs[each] for each in parts) + count * COPIED * copied <= MORE * alone:
            found[count] = parts
        else:
            costs[count] = alone
    return found

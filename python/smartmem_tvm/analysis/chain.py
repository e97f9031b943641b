# SPDX-License-Identifier: Apache-2.0
"""What a chain of small stages takes in one launch on a GPU, and along which axes its work falls into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir

from ..ir.chain import elements, places, points, terms
from ..ir.kernel import Stage, shape_of
from ..ir.sizes import number_bytes

# Cycles, from NVIDIA's A100 and H100 as published microbenchmarks have them (Luo et al., 2024): a load from the second
# level takes 200 to 270, a barrier of a group 20 to 40, one from shared memory or the first level 30.
_START = 300  # of a stage: the first load of what it reads, and its barrier
_TERM = 12  # of a thread for each term of a sum: two loads, of which several are under way at once
_BYTES_PER_CYCLE = 32  # that one processor reads from the second level
_THREADS = 1024  # that work at once on one processor
LANES = 32
"""Parts that a processor does at once: of fewer there is no use in cutting a chain."""


@dataclass(frozen=True)
class Device:
    """What decides whether a chain is worth it.

    Attributes
    ----------
    launch : float
        Cycles that one more kernel costs.
    processors : int
        Units that run groups of threads.
    shared_bytes : int
        Memory that the threads of a group share.
    group : int
        Threads of a group, at most.
    """

    launch: float = 5000.0
    processors: int = 132
    shared_bytes: int = 48 * 1024
    group: int = 1024


@dataclass(frozen=True, eq=False)
class Load:
    """One read of a stage: its buffer, and for each dimension the iterator that is its place, None for other places."""

    buffer: object
    along: tuple


@dataclass(frozen=True, eq=False)
class Sketch:
    """What is looked at of a stage while chains are put together.

    Attributes
    ----------
    written : object
        The buffer that it writes.
    along : tuple
        For each dimension of it the iterator that walks there.
    loads : tuple of Load
    points, terms : int
        Elements, and the terms of each.
    bytes : int
        That it reads, each once.
    """

    written: object
    along: tuple
    loads: tuple[Load, ...]
    points: int
    terms: int
    bytes: int


def sketch(stage: Stage) -> Sketch | None:
    """A stage as chains see it, None for one that no chain takes."""
    along = places(stage)
    if along is None or len(stage.outputs) != 1:
        return None
    spatial = {var for var in stage.spatial if stage.extents[var] > 1}

    def walked(index):
        return index if isinstance(index, ir.Var) and index in spatial else None

    found = tuple(Load(each.source, tuple(map(walked, each.indices))) for each in stage.loads)
    sources = {each.buffer: number_bytes(str(each.buffer.dtype)) for each in found}
    work = points(stage) * terms(stage)
    size = sum(min(elements(buffer), work) * each for buffer, each in sources.items())
    return Sketch(stage.outputs[0], tuple(along), found, points(stage), terms(stage), size)


def common_axes(sketches: Sequence[Sketch], own: set) -> dict[object, tuple[int, ...]] | None:
    """For each buffer that is written its dimensions along which no part of a chain reads of another; None: none.

    Parameters
    ----------
    own : set
        Buffers that one stage writes and another one reads.

    Returns
    -------
    dict or None
        The same axes, in the same order, for all buffers: parts may be computed by groups of threads that know nothing
        of each other.
    """
    parent: dict = {}

    def root(node):
        while parent.setdefault(node, node) != node:
            node = parent[node] = parent[parent[node]]
        return node

    spoilt = []
    for each in sketches:
        axis = {var: (each.written, dim) for dim, var in enumerate(each.along) if var is not None}
        for load in each.loads:
            if load.buffer not in own:
                continue
            for dim, (var, extent) in enumerate(zip(load.along, shape_of(load.buffer), strict=True)):
                if extent == 1:
                    continue
                if var is None or shape_of(each.written)[axis[var][1]] != extent:
                    spoilt.append((load.buffer, dim))
                else:
                    parent[root((load.buffer, dim))] = root(axis[var])
    bad = {root(node) for node in spoilt}
    alive, found = None, {}
    for written in dict.fromkeys(each.written for each in sketches):
        dims: dict = {}
        for dim, extent in enumerate(shape_of(written)):
            if extent > 1:
                dims.setdefault(root((written, dim)), []).append(dim)
        mine = {each: at[0] for each, at in dims.items() if len(at) == 1 and each not in bad}
        alive = list(mine) if alive is None else [each for each in alive if each in mine]
        found[written] = mine
        if not alive:
            return None
    # Axes must walk the whole buffer in each stage: a stage that writes a part of it has no place in it for the others.
    for each in sketches:
        alive = [axis for axis in alive if each.along[found[each.written][axis]] is not None]
    return {written: tuple(mine[axis] for axis in alive) for written, mine in found.items()} if alive else None


def parts_of(axes: dict) -> int:
    """Parts that a chain falls into along its common axes."""
    written, dims = next(iter(axes.items()))
    return prod(shape_of(written)[dim] for dim in dims)


def cycles(sketches: Sequence[Sketch], own: set, device: Device) -> float:
    """What a chain takes, without its launch: in one group of threads, or in as many as it has parts for."""
    axes = common_axes(sketches, own)
    groups = max(1, min(device.processors, parts_of(axes) // LANES)) if axes else 1
    return sum(_stage(each, groups) for each in sketches)


def alone(sketches: Sequence[Sketch], device: Device) -> float:
    """What the stages of a kernel take in a launch of their own that all of the device works on."""
    return device.launch + sum(_stage(each, device.processors) for each in sketches)


def _stage(each: Sketch, groups: int) -> float:
    rounds = -(-each.points // (groups * min(_THREADS, max(LANES, each.points // groups))))
    return _START + max(rounds * each.terms * _TERM, each.bytes / groups / _BYTES_PER_CYCLE)

# SPDX-License-Identifier: Apache-2.0
"""What a chain of small stages takes in one launch on a GPU, and along which axes its work falls into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir

from ..ir.chain import elements, places, points, reads, terms
from ..ir.kernel import Stage, shape_of
from ..ir.sizes import number_bytes

# Cycles, from NVIDIA's A100 and H100 as published microbenchmarks have them (Luo et al., 2024): a load from the second
# level takes 200 to 270, a barrier of a group 20 to 40, one from shared memory or the first level 30.
_START = 300  # of a stage: the first load of what it reads, and its barrier
_TERM = 12  # of a thread for each term of a sum: two loads, of which several are under way at once
_BYTES_PER_CYCLE = 32  # that one processor reads from the second level
_THREADS = 1024  # that work at once on one processor
OWN_POINTS = 32
"""Elements of a stage that one thread computes by itself, and numbers that it keeps of a buffer, at most."""
_OWN_TERMS = 64  # terms of them
_MOST_SHARES = 16  # threads that share a sum
_GROUP = 256  # threads that parts are put together for
SLACK = 256
"""Bytes of shared memory that alignment may take."""
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

    @classmethod
    def of(cls, limits) -> Device:
        """That of a target with these `target.Limits`."""
        return cls(limits.launch_cycles, limits.processors, limits.shared_bytes, limits.work_group)


@dataclass(frozen=True, eq=False)
class Load:
    """One read of a stage: its buffer, and for each dimension the iterator that is its place, None for other places."""

    buffer: object
    shape: tuple[int, ...]
    along: tuple


@dataclass(frozen=True, eq=False)
class Sketch:
    """What is looked at of a stage while chains are put together.

    Attributes
    ----------
    written : object
        The buffer that it writes.
    shape : tuple of int
        Of that buffer.
    along : tuple
        For each dimension of it the iterator that walks there.
    loads : tuple of Load
    points, terms : int
        Elements, and the terms of each.
    bytes : int
        That it reads, each once.
    """

    written: object
    shape: tuple[int, ...]
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

    found = tuple(Load(each.source, shape_of(each.source), tuple(map(walked, each.indices))) for each in reads(stage))
    work = points(stage) * terms(stage)
    sizes = {each.buffer: (prod(each.shape), number_bytes(str(each.buffer.dtype))) for each in found}
    size = sum(min(count, work) * each for count, each in sizes.values())
    written = stage.outputs[0]
    return Sketch(written, shape_of(written), tuple(along), found, points(stage), terms(stage), size)


class Axes:
    """The axes along which no part of some stages reads what another part has made.

    Dimensions of buffers are in one class if stages walk along them together. A class is an axis if each buffer that
    is written has one dimension in it, and all reads of them stay at the same place of it.
    """

    def __init__(self):
        self._parent: dict = {}
        self._buffers: dict = {}  # root -> the buffers with a dimension in its class
        self._bad: set = set()
        self._shapes: dict = {}  # what is written -> its shape
        self.alive: list | None = None  # a dimension of each axis; None before the first stage

    def having(self, sketches: Sequence[Sketch]) -> Axes:
        """These axes after more stages, in order."""
        new = Axes()
        new._parent, new._buffers, new._bad = dict(self._parent), dict(self._buffers), set(self._bad)
        new._shapes, new.alive = dict(self._shapes), self.alive if self.alive is None else list(self.alive)
        for each in sketches:
            new._link(each)
        for each in sketches:
            new._keep(each)
        return new

    @property
    def parts(self) -> int:
        """Parts that the stages fall into; 1 if there is no axis."""
        return prod(self._shapes[buffer][dim] for buffer, dim in self.alive or ())

    def dims(self) -> dict[object, tuple[int, ...]]:
        """For each buffer that is written the dimension of each axis."""
        roots = [self._root(each) for each in self.alive or ()]
        found = {}
        for buffer, shape in self._shapes.items():
            mine = {self._root((buffer, dim)): dim for dim, extent in enumerate(shape) if extent > 1}
            found[buffer] = tuple(mine[root] for root in roots)
        return found

    def _root(self, node):
        while self._parent.setdefault(node, node) != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def _join(self, one, other) -> None:
        one, other = self._root(one), self._root(other)
        if one == other:
            return
        mine, theirs = self._buffers.get(one, frozenset()), self._buffers.get(other, frozenset())
        if mine & theirs or one in self._bad or other in self._bad:
            self._bad |= {one, other}  # a buffer has two dimensions in the class
        self._parent[one] = other
        self._buffers[other] = mine | theirs

    def _link(self, each: Sketch) -> None:
        """Put together what the stage walks along together."""
        walked = {var: (each.written, dim) for dim, var in enumerate(each.along) if var is not None}
        known = each.written in self._shapes
        self._shapes[each.written] = each.shape
        for dim, extent in enumerate(each.shape):
            if extent > 1 and not known:
                self._buffers[self._root((each.written, dim))] = frozenset([each.written])
        for load in each.loads:
            if load.buffer not in self._shapes:
                continue
            for dim, (var, extent) in enumerate(zip(load.along, load.shape, strict=True)):
                if extent == 1:
                    continue
                if var is None or each.shape[walked[var][1]] != extent:
                    self._bad.add(self._root((load.buffer, dim)))
                else:
                    self._join((load.buffer, dim), walked[var])

    def _keep(self, each: Sketch) -> None:
        """Leave the axes that the stage has, too."""
        walked = {var: (each.written, dim) for dim, var in enumerate(each.along) if var is not None}
        if self.alive is None:
            self.alive = list(walked.values())
        # A stage that writes at one place of an axis has no place in it for the other parts.
        mine = {self._root(node) for node in walked.values()}
        roots = [self._root(node) for node in self.alive]
        once = [root in mine and root not in self._bad and roots.count(root) == 1 for root in roots]
        self.alive = [node for node, stays in zip(self.alive, once) if stays]


def groups_of(parts: int, device: Device) -> int:
    """Groups of threads that so many parts are spread over."""
    return max(1, min(device.processors, parts // LANES))


def cycles(sketches: Sequence[Sketch], groups: int) -> float:
    """What a chain takes, without its launch, on so many processors."""
    return sum(_stage(each, groups) for each in sketches)


def alone(sketches: Sequence[Sketch], launches: int, device: Device) -> float:
    """What the stages of a kernel take in launches of their own that all of the device works on."""
    return launches * device.launch + sum(_stage(each, device.processors) for each in sketches)


def _stage(each: Sketch, groups: int) -> float:
    rounds = -(-each.points // (groups * min(_THREADS, max(LANES, each.points // groups))))
    return _START + max(rounds * each.terms * _TERM, each.bytes / groups / _BYTES_PER_CYCLE)


@dataclass(frozen=True)
class Plan:
    """Who does what of a chain.

    Attributes
    ----------
    axes : dict
        Buffer -> its dimensions along which parts follow each other; empty if there are none.
    parts : int
        Parts of the chain that read nothing of each other.
    threads, together : int
        Of a group, and parts that it does.
    private : bool
        A part is done by one thread, and what it keeps lies in registers.
    shared_bytes : int
        That the threads of a group share, without room for parts of sums.
    """

    axes: dict
    parts: int
    threads: int
    together: int
    private: bool
    shared_bytes: int


def plan_of(sketches: Sequence[Sketch], own: Sequence, device: Device) -> Plan:
    """How a chain of these stages is spread, which may take more memory than there is (`Plan.shared_bytes`)."""
    found = Axes().having(sketches)
    axes, parts = found.dims() if found.alive else {}, found.parts
    rest = [each.points // parts for each in sketches]
    kept = {buffer: elements(buffer) // parts for buffer in own}
    if parts > 1 and max([*rest, *kept.values()]) <= OWN_POINTS and max(each.terms for each in sketches) <= _OWN_TERMS:
        return Plan(axes, parts, min(LANES, parts), min(LANES, parts), True, 0)
    each = sum(count * number_bytes(str(buffer.dtype)) for buffer, count in kept.items())
    together = max(1, min(parts, _GROUP // max(rest))) if parts >= LANES else 1
    while together > 1 and together * each > device.shared_bytes - SLACK:
        together //= 2
    shares = [most_shares(sketch.terms) for sketch in sketches]
    wanted = max(n * together * share for n, share in zip(rest, shares, strict=True))
    threads = min(device.group, -(-wanted // LANES) * LANES)
    return Plan(axes, parts, threads, together, False, together * each)


def most_shares(count: int) -> int:
    """Threads that may share a sum of so many terms."""
    return _MOST_SHARES if count >= 16 else 1

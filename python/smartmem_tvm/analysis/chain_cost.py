# SPDX-License-Identifier: Apache-2.0
"""Cost model of chains of small stages in one launch on a GPU, and the axes along which their work is independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir

from ..ir.chain import elements, places, points, reads, terms
from ..ir.kernel import Stage, shape_of
from ..ir.sizes import number_bytes
from ..target import GRAPH_LAUNCH, Limits

# Assumed for GPUs of the size of NVIDIA's A100 and H100, not measured: some 250 cycles for a load from the second-level
# cache, 30 for a barrier of a thread block and for a load from shared memory. `benchmarks/chains.py` times the kernels
# that they decide on.
_START = 300  # cycles of a stage for its first load and its barrier
_TERM = 12  # cycles of a thread for each term of a sum: two loads, several of which are in flight at once
_BYTES_PER_CYCLE = 32  # bytes that one processor reads from the second-level cache in a cycle
_THREADS = 1024  # threads that run at once on one processor
OWN_POINTS = 32
"""Most elements of a stage that one thread computes alone, and most numbers that it keeps of a buffer."""
_OWN_TERMS = 64  # most terms of these elements
_MOST_SHARES = 16  # most threads that share a sum
_GROUP = 256  # threads of a thread block, up to which parts are combined
SLACK = 256
"""Bytes of shared memory that alignment may take."""
LANES = 32
"""Parts that a processor runs at once; with fewer parts, splitting a chain does not pay."""


LARGE = Limits(work_group=1024, launch_cycles=GRAPH_LAUNCH)
"""A large GPU whose launches come from a CUDA graph."""


@dataclass(frozen=True, eq=False)
class Load:
    """A load of a stage: its buffer, and for each dimension the iterator that is its index, None for other indices."""

    buffer: object
    shape: tuple[int, ...]
    along: tuple


@dataclass(frozen=True, eq=False)
class Sketch:
    """The facts about a stage that the search for chains uses.

    Attributes
    ----------
    written : object
        The buffer that it writes.
    shape : tuple of int
        Shape of that buffer.
    along : tuple
        For each dimension of that buffer, the iterator that walks along it.
    loads : tuple of Load
    points, terms : int
        Number of elements, and of terms of each.
    bytes : int
        Distinct bytes that it reads.
    """

    written: object
    shape: tuple[int, ...]
    along: tuple
    loads: tuple[Load, ...]
    points: int
    terms: int
    bytes: int


def sketch(stage: Stage) -> Sketch | None:
    """Return the sketch of a stage, None for a stage that no chain accepts."""
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
    """The axes along which the parts of some stages are independent: no part reads another part's results.

    Dimensions of buffers are in one class if stages walk along them together. A class is an axis if each written buffer
    has one dimension in it, and all loads from these buffers stay at the same index along it.
    """

    def __init__(self):
        self._parent: dict = {}
        self._buffers: dict = {}  # root -> the buffers with a dimension in its class
        self._bad: set = set()
        self._shapes: dict = {}  # written buffer -> its shape
        self.alive: list | None = None  # a dimension of each axis; None before the first stage

    def having(self, sketches: Sequence[Sketch]) -> Axes:
        """Return the axes after more stages, in order."""
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
        """Number of independent parts of the stages; 1 if there is no axis."""
        return prod(self._shapes[buffer][dim] for buffer, dim in self.alive or ())

    def dims(self) -> dict[object, tuple[int, ...]]:
        """Return written buffer -> its dimension along each axis."""
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
        """Join the dimensions that the stage walks along together."""
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
        """Keep only the axes that the stage has too."""
        walked = {var: (each.written, dim) for dim, var in enumerate(each.along) if var is not None}
        if self.alive is None:
            self.alive = list(walked.values())
        # A stage that writes at a single index of an axis has no work for the other parts.
        mine = {self._root(node) for node in walked.values()}
        roots = [self._root(node) for node in self.alive]
        once = [root in mine and root not in self._bad and roots.count(root) == 1 for root in roots]
        self.alive = [node for node, stays in zip(self.alive, once) if stays]


def groups_of(parts: int, device: Limits) -> int:
    """Return the number of thread blocks for a number of parts."""
    return max(1, min(device.processors, parts // LANES))


def cycles(sketches: Sequence[Sketch], groups: int) -> float:
    """Return the cycles of a chain on a number of processors, without its launch."""
    return sum(_stage(each, groups) for each in sketches)


def alone(sketches: Sequence[Sketch], launches: int, device: Limits) -> float:
    """Return the cycles of a kernel's stages in separate launches that use the whole device."""
    return launches * device.launch_cycles + sum(_stage(each, device.processors) for each in sketches)


def _stage(each: Sketch, groups: int) -> float:
    rounds = -(-each.points // (groups * min(_THREADS, max(LANES, each.points // groups))))
    return _START + max(rounds * each.terms * _TERM, each.bytes / groups / _BYTES_PER_CYCLE)


@dataclass(frozen=True)
class Plan:
    """The distribution of a chain's work.

    Attributes
    ----------
    axes : dict
        Buffer -> its dimensions along which the parts lie; empty if there are none.
    parts : int
        Number of independent parts of the chain.
    threads, together : int
        Threads of a thread block, and parts that it computes.
    private : bool
        Whether one thread computes a part, and keeps its buffers in registers.
    shared_bytes : int
        Shared memory of a thread block, without that for partial sums.
    """

    axes: dict
    parts: int
    threads: int
    together: int
    private: bool
    shared_bytes: int


def plan_of(sketches: Sequence[Sketch], own: Sequence, device: Limits) -> Plan:
    """Return the plan of a chain of these stages; `Plan.shared_bytes` may exceed the device's memory."""
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
    threads = min(device.work_group, -(-wanted // LANES) * LANES)
    return Plan(axes, parts, threads, together, False, together * each)


def most_shares(count: int) -> int:
    """Return the most threads that may share a sum of `count` terms."""
    return _MOST_SHARES if count >= 16 else 1

# SPDX-License-Identifier: Apache-2.0
"""Axes of a kernel: iterators of several stages share an axis if one stage reads what the other writes along it.

    s[b, i, j] += q[b, i, k] * x[b, j, k];  m[b, i] max= s[b, i, j];  out[b, i, j] = s[b, i, j] - m[b, i]

Here the axes are b, i, j and k. Every stage runs along b and i: these are the rows that the stages share. The buffers
between the stages determine the axes; positions and extents of iterators do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tvm import ir, tirx

from .kernel import Kernel, Opaque, Stage, substitute


@dataclass(frozen=True, eq=False)
class SharedRows:
    """A kernel whose stages share rows.

    Attributes
    ----------
    kernel : Kernel
        The kernel; its stages have no iterators of extent 1.
    axes : dict
        For each stage, the axis (a number) of each of its iterators.
    shared : tuple of int
        The axes along which every stage has a spatial iterator.
    """

    kernel: Kernel
    axes: dict
    shared: tuple[int, ...]

    def axis(self, stage: Stage, at) -> int | None:
        """Return the axis of an index of a stage if the index is an iterator by itself, else None."""
        return self.axes[stage].get(at) if isinstance(at, ir.Var) else None

    def rows_of(self, stage: Stage) -> list:
        """Return the iterators of a stage along the shared axes, in the order of `shared`."""
        return [v for axis in self.shared for v, mine in self.axes[stage].items() if mine == axis]

    def inner(self, stage: Stage) -> tuple:
        """Return the spatial iterators of a stage within a row."""
        return tuple(v for v in stage.spatial if self.axes[stage][v] not in self.shared)


def without_unit_iterators(kernel: Kernel) -> Kernel:
    """Return the kernel without iterators of extent 1."""
    return replace(kernel, stages=tuple(stage_without_units(s) for s in kernel.stages))


def stage_without_units(stage: Stage) -> Stage:
    """Return the stage without its iterators of extent 1; a reduction keeps at least one reduction iterator."""
    unit = [it.var for it in stage.iters if stage.extents[it.var] == 1]
    if stage.reduction and all(stage.extents[v] == 1 for v in stage.reduction):
        unit = [v for v in unit if not v.same_as(stage.reduction[0])]
    if not unit:
        return stage
    zeros = {v: tirx.const(0, v.ty.dtype) for v in unit}
    init = substitute(stage.init, zeros) if stage.init is not None else None
    iters = tuple(it for it in stage.iters if it.var not in zeros)
    return Stage(stage.name, iters, substitute(stage.body, zeros), init, stage.annotations)


def reads_between(kernel: Kernel) -> Iterator[tuple[Stage, Stage, ir.TensorLoad]]:
    """Yield (producer, reader, load) for each load from a buffer that an earlier stage writes.

    Raises
    ------
    Opaque
        If a stage does not write one buffer of its own, or reads a buffer that a later stage writes.
    """
    producers: dict[int, Stage] = {}  # by address: to compare two buffers takes longer
    inner = set(map(hash, kernel.intermediates))
    for stage in kernel.stages:
        if not isinstance(stage.body, tirx.BufferStore) or hash(stage.body.buffer) in producers:
            raise Opaque(f"stage {stage.name} does not write one buffer")
        for load in stage.loads:
            source = hash(load.source)
            if source in producers:
                yield producers[source], stage, load
            elif source in inner:
                raise Opaque(f"stage {stage.name} reads what is written later")
        producers[hash(stage.body.buffer)] = stage


def axes_of(kernel: Kernel, source=None) -> tuple[dict, dict]:
    """Return the axis of every iterator of every stage, and the extent of every axis.

    Parameters
    ----------
    source : buffer, optional
        An input that links iterators as intermediate buffers do, where stages read it at bare iterators.

    Raises
    ------
    Opaque
        If a stage writes or reads an intermediate buffer through a map.
    """
    links: list = []
    for producer, reader, load in reads_between(kernel):
        links += [((producer, made), (reader, read)) for made, read in _bare(producer, reader, load)]
    if source is not None:
        links += _read_alike(kernel, source)
    axes = linked(kernel, links)
    extents: dict = {}
    for stage in kernel.stages:
        if len(set(axes[stage].values())) != len(stage.extents):
            raise Opaque(f"two iterators of stage {stage.name} run along one axis")
        for var, axis in axes[stage].items():
            if extents.setdefault(axis, stage.extents[var]) != stage.extents[var]:
                raise Opaque(f"stage {stage.name} reads part of an intermediate result")
    return axes, extents


def shared_rows(kernel: Kernel, along: Stage) -> SharedRows:
    """Return the rows that all stages share if they are all spatial iterators of stage `along`.

    Within a row, stages may read through any map.

    Raises
    ------
    Opaque
        If some stage reads outside its row.
    """
    reads = list(reads_between(kernel))
    links = [
        ((producer, made), (reader, read))
        for producer, reader, load in reads
        for made, read in zip(producer.body.indices, load.indices, strict=True)
        if isinstance(made, ir.Var) and isinstance(read, ir.Var)
    ]
    axes = linked(kernel, links)
    rows = SharedRows(kernel, axes, tuple(axes[along][v] for v in along.spatial))
    extents = [along.extents[v] for v in along.spatial]
    for stage in kernel.stages:
        own = rows.rows_of(stage)
        if [axes[stage][v] for v in own] != list(rows.shared) or any(v in stage.reduction for v in own):
            raise Opaque(f"stage {stage.name} does not run along the rows of stage {along.name}")
        if [stage.extents[v] for v in own] != extents:
            raise Opaque(f"stage {stage.name} runs along a part of the rows of stage {along.name}")
    for producer, reader, load in reads:
        for made, read in zip(producer.body.indices, load.indices, strict=True):
            axis = rows.axis(producer, made)
            if axis in rows.shared and rows.axis(reader, read) != axis:
                raise Opaque(f"stage {reader.name} reads {load.source.name} in other rows")
    return rows


def linked(kernel: Kernel, links: Iterable[tuple]) -> dict:
    """Return the axis (a number) of each iterator, by stage; a link joins the axes of two pairs (stage, iterator)."""
    parent: dict = {}

    def root(stage: Stage, var) -> tuple[Stage, int]:
        key = stage, hash(var)  # its address: to compare two variables takes longer
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for one, other in links:
        parent[root(*other)] = root(*one)
    numbers: dict = {}
    return {s: {v: numbers.setdefault(root(s, v), len(numbers)) for v in s.extents} for s in kernel.stages}


def _read_alike(kernel: Kernel, source) -> list:
    """Return the links between iterators that read the same dimension of `source`."""
    links, before = [], []
    for stage in kernel.stages:
        for load in stage.loads:
            if not load.source.same_as(source):
                continue
            for other, indices in before:
                pairs = zip(indices, load.indices, strict=True)
                links += [((other, i), (stage, j)) for i, j in pairs if i in other.extents and j in stage.extents]
            before.append((stage, list(load.indices)))
    return links


def _bare(producer: Stage, reader: Stage, load) -> list:
    """Return the pairs of iterators that run along the same dimension of the buffer that `load` reads."""
    pairs = []
    for made, read in zip(producer.body.indices, load.indices, strict=True):
        unit = isinstance(made, tirx.IntImm) and isinstance(read, tirx.IntImm)
        if unit and int(made) == int(read):
            continue
        if not (isinstance(made, ir.Var) and isinstance(read, ir.Var) and read in reader.extents):
            raise Opaque(f"stage {reader.name} reads {load.source.name} through a map")
        pairs.append((made, read))
    if {made for made, _ in pairs} != set(producer.spatial) or len(pairs) != len(producer.spatial):
        raise Opaque(f"stage {producer.name} writes {load.source.name} through a map")
    return pairs

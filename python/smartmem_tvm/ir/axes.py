# SPDX-License-Identifier: Apache-2.0
"""Iterators of several stages that run along one axis, because what one stage writes another reads."""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx

from .kernel import Kernel, Opaque, Stage, substitute


def unitless(kernel: Kernel) -> Kernel:
    """The kernel without iterators of extent 1."""
    return replace(kernel, stages=tuple(without_units(s) for s in kernel.stages))


def without_units(stage: Stage) -> Stage:
    """The stage without its iterators of extent 1; one that reduces keeps a reduction iterator."""
    unit = [it.var for it in stage.iters if stage.extents[it.var] == 1]
    if stage.reduction and all(stage.extents[v] == 1 for v in stage.reduction):
        unit = [v for v in unit if not v.same_as(stage.reduction[0])]
    if not unit:
        return stage
    zeros = {v: tirx.const(0, v.ty.dtype) for v in unit}
    init = substitute(stage.init, zeros) if stage.init is not None else None
    iters = tuple(it for it in stage.iters if it.var not in zeros)
    return Stage(stage.name, iters, substitute(stage.body, zeros), init, stage.annotations)


def axes_of(kernel: Kernel, source=None) -> tuple[dict, dict]:
    """Axis of every iterator of every stage, and the extent of every axis.

    Parameters
    ----------
    source : buffer, optional
        An input that links iterators as intermediate buffers do, where it is read at bare iterators.

    Raises
    ------
    Opaque
        If an intermediate buffer is written or read through a map.
    """
    parent: dict = {(s, v): (s, v) for s in kernel.stages for v in s.extents}

    def root(key):
        while parent[key] != key:
            key = parent[key]
        return key

    producers: dict = {}
    reads: list = []
    for stage in kernel.stages:
        if not isinstance(stage.body, tirx.BufferStore) or stage.body.buffer in producers:
            raise Opaque(f"stage {stage.name} does not write one buffer")
        for load in stage.loads:
            pairs: list = []
            if load.source in producers:
                maker = producers[load.source]
                pairs = [(maker, made, read) for made, read in _links(maker, stage, load)]
            elif load.source in kernel.intermediates:
                raise Opaque(f"stage {stage.name} reads what is written later")
            elif source is not None and load.source.same_as(source):
                mine = list(load.indices)
                pairs = [
                    (s, i, j)
                    for s, indices in reads
                    for i, j in zip(indices, mine, strict=True)
                    if i in s.extents and j in stage.extents
                ]
                reads.append((stage, mine))
            for other, made, read in pairs:
                parent[root((stage, read))] = root((other, made))
        producers[stage.body.buffer] = stage
    return _numbered(kernel, root)


def _numbered(kernel: Kernel, root) -> tuple[dict, dict]:
    numbers: dict = {}
    axes: dict = {s: {v: numbers.setdefault(root((s, v)), len(numbers)) for v in s.extents} for s in kernel.stages}
    extents: dict = {}
    for stage in kernel.stages:
        if len(set(axes[stage].values())) != len(stage.extents):
            raise Opaque(f"two iterators of stage {stage.name} run along one axis")
        for var, axis in axes[stage].items():
            if extents.setdefault(axis, stage.extents[var]) != stage.extents[var]:
                raise Opaque(f"stage {stage.name} reads part of an intermediate result")
    return axes, extents


def _links(producer: Stage, reader: Stage, load) -> list:
    """Pairs of iterators that run along the same axis of the buffer that `load` reads."""
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

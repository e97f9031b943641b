# SPDX-License-Identifier: Apache-2.0
"""Find the row that the stages of a kernel share: outer iterators that mean the same in each of them.

    sum[i, j] += x[i, j, k];  out[i, k, j] = x[i, j, k] / sum[i, j]        rows (i, j), inner k

The correspondence is read off the buffers that pass between stages, not off positions or extents.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ...ir.axes import unitless
from ...ir.kernel import Kernel, Stage
from .reduction import combiner_of


@dataclass(frozen=True, eq=False)
class RowSpace:
    """The rows of a kernel.

    Attributes
    ----------
    kernel : Kernel
        With iterators of extent 1 taken out of the stages.
    extents : tuple of int
        Extent of each row iterator.
    variables : dict
        For each stage, its variables for the row iterators, in order.
    inner : dict
        For each buffer that stays within a row, the axes that are not row iterators.
    """

    kernel: Kernel
    extents: tuple[int, ...]
    variables: dict
    inner: dict

    def rows_of(self, stage: Stage) -> list:
        """Variables of `stage` that run over the rows."""
        return self.variables[stage]

    def inner_axes(self, buffer) -> list[int] | None:
        """Axes of a row-sized copy of `buffer`, or None if it is no intermediate."""
        return self.inner.get(buffer)

    @property
    def work(self) -> int:
        """Points over all stages."""
        total = 0
        for stage in self.kernel.stages:
            points = 1
            for extent in stage.extents.values():
                points *= extent
            total += points
        return total


def row_space_of(kernel: Kernel) -> RowSpace | None:
    """The rows that all stages share, or None if some stage crosses them."""
    kernel = unitless(kernel)
    producers: dict = {}
    for stage in kernel.stages:
        if not isinstance(stage.body, tirx.BufferStore) or stage.body.buffer in producers:
            return None
        if stage.reduction and combiner_of(stage) is None:
            return None
        producers[stage.body.buffer] = stage
    reductions = [s for s in kernel.stages if s.reduction]
    if not reductions:
        return None
    last = reductions[-1]
    ids: dict = {s: {} for s in kernel.stages}
    ids[last] = {v: n for n, v in enumerate(last.spatial)}
    links = _links(kernel, producers)
    if links is None or not _propagate(ids, links):
        return None
    extents = tuple(last.extents[v] for v in last.spatial)
    variables = {}
    for stage in kernel.stages:
        ordered = [v for n in range(len(extents)) for v, m in ids[stage].items() if m == n]
        if [stage.extents[v] for v in ordered] != list(extents) or any(v in stage.reduction for v in ordered):
            return None
        variables[stage] = ordered
    if not _rows_agree(ids, links):
        return None
    inner = {}
    for buffer in kernel.intermediates:
        axes = enumerate(producers[buffer].body.indices)
        inner[buffer] = [a for a, at in axes if not (isinstance(at, ir.Var) and at in ids[producers[buffer]])]
    return RowSpace(kernel, extents, variables, inner)


def _links(kernel: Kernel, producers: dict):
    """(producer, its index, reader, the reader's index) for each axis of each read of an intermediate buffer."""
    links, done = [], []
    for reader in kernel.stages:
        for load in reader.loads:
            producer = producers.get(load.source)
            if producer is None:
                continue
            if producer not in done:
                return None  # reads what a later stage writes
            pairs = zip(producer.body.indices, load.indices, strict=True)
            links += [(producer, made, reader, read) for made, read in pairs]
        done.append(reader)
    return links


def _propagate(ids: dict, links: list) -> bool:
    """Carry row numbers along the links until nothing changes; False on a contradiction."""
    changed = True
    while changed:
        changed = False
        for producer, made, reader, read in links:
            if not (isinstance(made, ir.Var) and isinstance(read, ir.Var)):
                continue
            for here, var, there, other in ((producer, made, reader, read), (reader, read, producer, made)):
                number = ids[here].get(var)
                if number is None or ids[there].get(other) == number:
                    continue
                if other in ids[there] or number in ids[there].values():
                    return False
                ids[there][other] = number
                changed = True
    return True


def _rows_agree(ids: dict, links: list) -> bool:
    """Every read of an intermediate buffer stays in the row."""
    for producer, made, reader, read in links:
        number = ids[producer].get(made) if isinstance(made, ir.Var) else None
        if number is not None and not (isinstance(read, ir.Var) and ids[reader].get(read) == number):
            return False
    return True

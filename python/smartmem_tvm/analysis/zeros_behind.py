# SPDX-License-Identifier: Apache-2.0
"""How many elements behind the length a kernel reads: those that windows find there, in place of padding.

    p[w] = x[w - 2] if 2 <= w < W + 2 else 0;  y[w] = sum_k p[w + k] * weights[k]        k < 5, W at the capacity

Where nothing reads ``y`` behind its first ``m`` elements, ``p`` is read up to ``m + 3``, and ``x`` up to ``m + 1``.
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm import ir, sym, tirx

from ..ir.index_map import variables
from ..ir.kernel import Kernel, Stage, substitute
from ..ir.mask_positions import Extent
from .unread_positions import Axes

Line = tuple[int, int]
"""The last element that is read along an axis, for the last one of the result that is needed: a factor, and what is
added."""
_UNBOUND = 1 << 31  # an index that no tensor has, by definition: the analyzer knows no bound


def zeros_behind(
    readers: Iterable[tuple[Kernel, object, Axes]], axis: int, extent: Extent, capacity: int
) -> int | None:
    """Return how many elements of a tensor behind the length have to be zeros; None if all have to.

    Parameters
    ----------
    readers : iterable of tuple
        Kernels that read the tensor, what it is called in them, and the axes along which nothing reads their result
        behind the length, or only as zeros that the kernel writes itself.
    axis : int
    extent : Extent
        The elements before the length.
    capacity : int
    """
    most = 0
    for kernel, buffer, unread in readers:
        counts = [_count(kernel, buffer, axis, extent, each, capacity) for each in unread.items()]
        found = [each for each in counts if each is not None]
        if not found:
            return None
        most = max(most, min(found))
    return most


def _count(kernel: Kernel, buffer, axis: int, extent: Extent, unread: tuple, capacity: int) -> int | None:
    """Return how many elements behind the length a kernel reads, if its result is unread along one axis."""
    along, (_, result) = unread
    lines = _lines(kernel, buffer, axis, along)
    if lines is None:
        return None
    lengths = range(1, capacity + 1)
    return max((a * (result.of(n) - 1) + b + 1 - extent.of(n) for a, b in lines for n in lengths), default=0)


def _lines(kernel: Kernel, buffer, axis: int, along: int) -> set[Line] | None:
    """Return where along an axis a kernel's loads end; None if one does not follow the axis of the result."""
    known: dict = {(kernel.outputs[0], along): {(1, 0)}}
    for stage in reversed(kernel.stages):
        if not isinstance(stage.body, tirx.BufferStore):
            return None
        for load in stage.loads:
            if load.source.same_as(stage.body.buffer):
                continue  # what a sum has so far
            for dim in range(len(load.indices)):
                key = load.source, dim
                found = _loaded(stage, load.indices[dim], known)
                known[key] = None if found is None or known.get(key, ()) is None else known.get(key, set()) | found
    return known.get((buffer, axis), set())


def _loaded(stage: Stage, index, known: dict) -> set[Line] | None:
    """Return where an index of a load ends, by what is needed of the stage's result along one of its axes."""
    store = stage.body
    for dim, var in enumerate(store.indices):
        lines = known.get((store.buffer, dim))
        if lines is None or not any(var.same_as(each) for each in variables(index)):
            continue
        step = _step(stage, index, var)
        return None if step is None else {(step[0] * a, step[0] * b + step[1]) for a, b in lines}
    return None


def _step(stage: Stage, index, var) -> Line | None:
    """Return ``a`` and the most ``b`` of an index ``a * var + b``; None if it is no such index."""
    analyzer = sym.Analyzer()
    for each, extent in stage.extents.items():
        analyzer.bind(each, ir.Range(0, tirx.IntImm(each.ty.dtype, extent)))
    factor = analyzer.simplify(substitute(index, {var: var + tirx.const(1, var.ty.dtype)}) - index)
    if not isinstance(factor, tirx.IntImm) or int(factor) < 1:
        return None
    rest = analyzer.simplify(index - var * factor)
    if var in variables(rest) or any(isinstance(each, ir.TensorLoad) for each in variables(rest)):
        return None
    most = analyzer.const_int_bound(rest).max_value
    return (int(factor), int(most)) if most < _UNBOUND else None

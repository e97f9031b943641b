# SPDX-License-Identifier: Apache-2.0
"""Which dimensions of a tensor lie next to each other in memory (SmartMem 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ORDER_PASSES = ("SelectLayout", "ChannelsInnermost", "PlanLayout")
"""Passes that say of tensors in which order they are stored."""
MOVED, KEPT = "stored in this order", "kept"


@dataclass(frozen=True)
class Demand:
    """What one reader wants of a tensor.

    Attributes
    ----------
    dims : frozenset of int
        Reduction dimensions: the reader runs along one of them first, and does not mind which. Not empty.
    elements : int
        How many elements it reads, repetitions included; says whose demand comes first.
    reader : str
        For messages.
    slid : frozenset of int
        Those of `dims` along which a window slides over the tensor: the results lie along them as well.
    """

    dims: frozenset[int]
    elements: int
    reader: str
    slid: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StorageOrder:
    """How a tensor is stored.

    Attributes
    ----------
    order : tuple of int
        Dimensions of the tensor from the outermost to the innermost one in memory.
    fast : tuple of int
        Those along which memory is contiguous: one in a buffer; in a texture that of the texel and that of an axis.
    served, unserved : tuple of Demand
        Readers that run along one of them, and readers that do not.
    """

    order: tuple[int, ...]
    fast: tuple[int, ...]
    served: tuple[Demand, ...]
    unserved: tuple[Demand, ...]


def order_decision(
    by: str, tensor: str, shape: Sequence[int], stored: StorageOrder, moved: bool, reason: str | None
) -> dict:
    """The entry of a tensor in the log of decisions, by one of `ORDER_PASSES`."""
    return {
        "pass": by,
        "tensor": tensor,
        "shape": list(shape),
        "order": list(stored.order),
        "fast": list(stored.fast),
        "action": MOVED if moved else KEPT,
        "unserved": [{"reader": d.reader, "dims": sorted(d.dims), "elements": d.elements} for d in stored.unserved],
        "reason": reason,
    }


def innermost(shape: Sequence[int]) -> int | None:
    """The innermost dimension of more than one element, None if there is none."""
    return next((dim for dim in reversed(range(len(shape))) if shape[dim] > 1), None)


def with_innermost(rank: int, dim: int) -> tuple[int, ...]:
    """The order in which one dimension is innermost and the others stay one after the other."""
    return (*(each for each in range(rank) if each != dim), dim)


def as_stored(shape: Sequence[int], demands: Sequence[Demand], fast_axes: int = 1) -> StorageOrder:
    """The order of the dimensions as they are, and whom it serves.

    Parameters
    ----------
    shape : sequence of int
        Of the tensor; of a texture as it lies in memory, rows, columns and the texel last.
    fast_axes : int
        How many of the innermost dimensions are contiguous, 1 in a buffer and 2 in a texture; those of one element do
        not count.
    """
    order = tuple(range(len(shape)))
    inner = [dim for dim in reversed(order) if shape[dim] > 1] or order[-1:]
    return _judged(order, tuple(inner[:fast_axes]), demands)


def storage_order(shape: Sequence[int], demands: Sequence[Demand], fast_axes: int) -> StorageOrder:
    """Choose the order of a tensor for all of its readers.

    Reduction dimensions are taken greedily, the one that serves most reads first, until `fast_axes` are chosen or
    everybody is served. Of equals the one that is innermost already wins, so that what serves its readers stays as it
    is.

    Parameters
    ----------
    shape : sequence of int
        Of the tensor, row-major before.
    demands : sequence of Demand
        Of its readers; there may be several of one reader.
    fast_axes : int
        The paper's k: dimensions along which memory can be contiguous, 1 for a buffer and 2 for a texture.
    """
    fast: list[int] = []
    waiting = list(demands)
    while waiting and len(fast) < fast_axes:
        candidates = sorted({dim for demand in waiting for dim in demand.dims}, reverse=True)
        best = max(candidates, key=lambda dim: (sum(d.elements for d in waiting if dim in d.dims), shape[dim] > 1))
        fast.append(best)
        waiting = [demand for demand in waiting if best not in demand.dims]
    if not fast:
        return as_stored(shape, demands)
    order = (*(dim for dim in range(len(shape)) if dim not in fast), *reversed(fast))
    return _judged(order, tuple(fast), demands)


def _judged(order: tuple[int, ...], fast: tuple[int, ...], demands: Sequence[Demand]) -> StorageOrder:
    served = tuple(demand for demand in demands if demand.dims & set(fast))
    return StorageOrder(order, fast, served, tuple(demand for demand in demands if demand not in served))

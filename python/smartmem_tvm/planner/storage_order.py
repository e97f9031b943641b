# SPDX-License-Identifier: Apache-2.0
"""The order of a tensor's dimensions in memory, chosen for its readers (SmartMem 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ORDER_PASSES = ("SelectLayout", "ChannelsInnermost", "PlanLayout")
"""The passes that choose the storage order of tensors."""
MOVED, KEPT = "stored in this order", "kept"


@dataclass(frozen=True)
class Demand:
    """The demand of one reader on the layout of a tensor.

    Attributes
    ----------
    dims : frozenset of int
        Reduction dimensions, not empty; the reader needs contiguous memory along any one of them.
    elements : int
        Number of elements that it reads, with repetitions: the weight of the demand.
    reader : str
        Name of the reader, for messages.
    slid : frozenset of int
        Those of `dims` along which a window slides over the tensor: the results lie along them as well.
    """

    dims: frozenset[int]
    elements: int
    reader: str
    slid: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StorageOrder:
    """The storage order of a tensor.

    Attributes
    ----------
    order : tuple of int
        Dimensions of the tensor from the outermost to the innermost one in memory.
    fast : tuple of int
        The dimensions with contiguous memory: one in a buffer; in a texture, that of the texel and that of an axis.
    served, unserved : tuple of Demand
        Demands for one of the dimensions `fast`, and other demands.
    """

    order: tuple[int, ...]
    fast: tuple[int, ...]
    served: tuple[Demand, ...]
    unserved: tuple[Demand, ...]


def order_decision(
    by: str, tensor: str, shape: Sequence[int], stored: StorageOrder, moved: bool, reason: str | None
) -> dict:
    """Return the entry of a tensor in the log of decisions, written by one of `ORDER_PASSES`."""
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
    """Return the innermost dimension with more than one element, None if there is none."""
    return next((dim for dim in reversed(range(len(shape))) if shape[dim] > 1), None)


def with_innermost(rank: int, dim: int) -> tuple[int, ...]:
    """Return the order with dimension `dim` innermost, and the others in their order."""
    return (*(each for each in range(rank) if each != dim), dim)


def with_outermost(order: tuple[int, ...], shape: Sequence[int], dim: int) -> tuple[int, ...]:
    """Return an order with dimension `dim` in front of all others but those of one element that lead it."""
    rest = [each for each in order if each != dim]
    units = next((place for place, each in enumerate(rest) if shape[each] > 1), len(rest))
    return (*rest[:units], dim, *rest[units:])


def as_stored(shape: Sequence[int], demands: Sequence[Demand], fast_axes: int = 1) -> StorageOrder:
    """Return the present order of the dimensions, with the demands that it serves.

    Parameters
    ----------
    shape : sequence of int
        Shape of the tensor; of a texture, the shape in memory, with rows, columns and the texel last.
    fast_axes : int
        Number of innermost dimensions that are contiguous, 1 in a buffer and 2 in a texture; dimensions of one element
        do not count.
    """
    order = tuple(range(len(shape)))
    inner = [dim for dim in reversed(order) if shape[dim] > 1] or order[-1:]
    return _judged(order, tuple(inner[:fast_axes]), demands)


def storage_order(shape: Sequence[int], demands: Sequence[Demand], fast_axes: int) -> StorageOrder:
    """Choose the order of a tensor for all of its readers.

    Reduction dimensions are chosen greedily, the one that serves most reads first, until there are `fast_axes` of them
    or all demands are served. In a tie the innermost dimension wins, so that an order that serves its readers stays.

    Parameters
    ----------
    shape : sequence of int
        Shape of the tensor, row-major before.
    demands : sequence of Demand
        Demands of its readers; a reader may have several.
    fast_axes : int
        The paper's k: the number of dimensions with contiguous memory, 1 for a buffer and 2 for a texture.
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

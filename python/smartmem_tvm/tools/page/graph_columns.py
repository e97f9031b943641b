# SPDX-License-Identifier: Apache-2.0
"""Assign columns to the lines of a graph that is drawn as a list: a tensor keeps its column until its last reader."""

from __future__ import annotations

from collections.abc import Sequence


def last_readers(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the last reader of each node's result; the node itself if its result is not read.

    Parameters
    ----------
    inputs : sequence of sequence of int
        The numbers of the nodes that each node reads.
    """
    last = list(range(len(inputs)))
    for reader, sources in enumerate(inputs):
        for source in sources:
            last[source] = max(last[source], reader)
    return last


def lanes(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return a column for each node, such that no two live tensors share one.

    A node takes the column of a tensor whose last reader it is, if there is one, so that chains are straight.

    Parameters
    ----------
    inputs : sequence of sequence of int
        As in `last_readers`.
    """
    last = last_readers(inputs)
    columns: list[int] = []
    taken: dict[int, int] = {}  # column -> the last reader of its tensor
    for node, sources in enumerate(inputs):
        taken = {column: end for column, end in taken.items() if end > node}
        ending = [columns[source] for source in sources if source < node and last[source] == node]
        free = (column for column in range(len(taken) + 1) if column not in taken)
        columns.append(min(ending) if ending else next(free))
        taken[columns[node]] = last[node]
    return columns

# SPDX-License-Identifier: Apache-2.0
"""Columns for the lines of a graph that is drawn as a list: a tensor keeps its column until it was read."""

from __future__ import annotations

from collections.abc import Sequence


def last_readers(inputs: Sequence[Sequence[int]]) -> list[int]:
    """The last node that reads each node's result; of what nobody reads, the node itself.

    Parameters
    ----------
    inputs : sequence of sequence of int
        The nodes that each node reads, by their numbers.
    """
    last = list(range(len(inputs)))
    for reader, sources in enumerate(inputs):
        for source in sources:
            last[source] = max(last[source], reader)
    return last


def lanes(inputs: Sequence[Sequence[int]]) -> list[int]:
    """A column for each node, such that no two tensors that are waited for at the same time share one.

    A node stands in the column of a tensor that it is the last to read, if there is one: chains are straight.

    Parameters
    ----------
    inputs : sequence of sequence of int
        As for `last_readers`.
    """
    last = last_readers(inputs)
    columns: list[int] = []
    taken: dict[int, int] = {}  # column -> the last node that reads what is in it
    for node, sources in enumerate(inputs):
        taken = {column: end for column, end in taken.items() if end > node}
        ending = [columns[source] for source in sources if source < node and last[source] == node]
        free = (column for column in range(len(taken) + 1) if column not in taken)
        columns.append(min(ending) if ending else next(free))
        taken[columns[node]] = last[node]
    return columns

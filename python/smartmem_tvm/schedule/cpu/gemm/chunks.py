# SPDX-License-Identifier: Apache-2.0
"""One axis of a product, divided among tasks."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from ...core.nest import block, index, split_work


@dataclass(frozen=True)
class Chunks:
    """One axis divided among tasks: `count` chunks of `length` units, the last one of `last`."""

    length: int
    count: int
    last: int

    @classmethod
    def of(cls, total: int, parts: int) -> Chunks:
        """Cut `total` units into at most `parts` chunks."""
        length, count = split_work(max(total, 1), parts)
        return cls(length, count, max(total, 1) - (count - 1) * length)

    def elements(self, unit: int, total: int) -> Chunks:
        """Return the same chunks of `total` elements, `unit` of them in each unit; the last chunk has the rest."""
        length = self.length * unit
        return Chunks(length, self.count, total - (self.count - 1) * length)

    @property
    def longest(self) -> int:
        """Number of units of the longest chunk."""
        return max(self.length, self.last) if self.count > 1 else self.last


def of_chunk(number, chunks: Chunks):
    """Return the length of chunk `number`."""
    if chunks.count == 1:
        return chunks.last
    if chunks.last == chunks.length:
        return chunks.length
    # This is arithmetic because TVM can bound it; it finds no bound of an extent with a condition.
    is_last = tirx.floordiv(number, index(chunks.count - 1))
    return index(chunks.length) + is_last * index(chunks.last - chunks.length)


def in_last_chunk(number, chunks: Chunks, statements: list) -> list:
    """Return `statements` behind the condition that the chunk is the last one."""
    if not statements or chunks.count == 1:
        return statements
    return [tirx.IfThenElse(number.equal(index(chunks.count - 1)), block(*statements), None)]

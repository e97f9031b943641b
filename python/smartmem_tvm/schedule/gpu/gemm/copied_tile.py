# SPDX-License-Identifier: Apache-2.0
"""The vectors of a tile that the threads of a thread block copy, in rounds of one vector for each thread."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ...core.nest import UNROLL, Scope, index
from ..launch import when


class CopiedTile:
    """A tile of an operand; staged operands inherit from it.

    Attributes
    ----------
    size, depth : int
        Elements along the outer index, and terms.
    width : int
        Elements of a vector.
    threads : int
        Threads that share the vectors.
    """

    size: int
    depth: int
    width: int
    threads: int

    @property
    def _vectors(self) -> int:
        return self.size * self.depth // self.width

    @property
    def _rounds(self) -> int:
        return -(-self._vectors // self.threads)

    def _each(self, scope: Scope, thread, body: Callable) -> tirx.Stmt:
        """Return ``body(c, number)`` for the vectors that a thread copies."""

        def vector(c):
            number = scope.analyzer.simplify(c * index(self.threads) + thread)
            inside = body(c, number)
            return inside if self._vectors % self.threads == 0 else when(number < index(self._vectors), inside)

        return scope.loop(self._rounds, vector, "c", UNROLL)

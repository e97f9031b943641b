# SPDX-License-Identifier: Apache-2.0
"""Vectors on their way through shared memory, to places that only one thread reads.

    start the copies of the first turns
    for each turn:
      wait for its copies
      read its vectors into registers
      start the copies of a later turn, where those of the turn before were
      use them

No thread waits for another one. Loads into registers, written one after the other, do not keep as many bytes on their
way: nvcc moves each to where its numbers are used, so that three of 16 are (33 registers by `nvcc -Xptxas -v`, CUDA
13.0).
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import DataType, tirx

from ...core.nest import Scope, block, index, store
from ..launch import when
from . import ptx
from .simt import as_vector


class Ring:
    """The vectors of some turns of each thread of a thread block.

    Parameters
    ----------
    name, dtype : str
    width : int
        Numbers of a vector: 4, 8 or 16 bytes.
    many : int
        Vectors of a thread in a turn.
    threads : int
    slots : int
        Turns; the vectors of all but one are on their way.
    memory : str
        ``shared.dyn``, of which a kernel has one buffer, or ``shared``.
    """

    def __init__(
        self,
        scope: Scope,
        name: str,
        dtype: str,
        width: int,
        many: int,
        threads: int,
        slots: int,
        memory: str = "shared.dyn",
    ):
        self.scope, self.width, self.many, self.threads, self.slots = scope, width, many, threads, slots
        self.bytes = width * DataType(dtype).itemsize
        # Kernels of one program share a name of dynamic shared memory only if they share its type.
        size, name = [index(slots * many * threads * width)], f"{name}_{dtype}"
        self.buffer = tirx.decl_buffer(size, dtype, name, scope=memory, layout=None)

    def _place(self, thread, turn, number: int):
        slot = tirx.floormod(turn, index(self.slots)) * index(self.many) + index(number)
        return self.scope.index((slot * index(self.threads) + thread) * index(self.width))

    def copy(self, thread, turn, number: int, source) -> tirx.Stmt:
        """Start to copy vector `number` of a turn; `source` is the load of its first element."""
        to = ptx.address(self.buffer, self._place(thread, turn, number))
        return ptx.copy(to, tirx.address_of(self.scope.simplify(source)), self.bytes, None)

    def read(self, thread, turn, number: int, into, first: int) -> tirx.Stmt:
        """Read the same vector into registers `into`, from place `first` on."""
        place = self._place(thread, turn, number)
        return as_vector(self.scope, self.width, lambda v: store(into, self.buffer[place + v], index(first) + v))


def in_turns(
    scope: Scope,
    turns: int,
    ahead: int,
    start: Callable,
    read: Callable,
    use: Callable,
    first: tirx.Stmt | None = None,
) -> tirx.Stmt:
    """Return ``start(turn)``, ``read(turn)``, ``use(turn)`` for each turn, with copies `ahead` of it.

    Parameters
    ----------
    first : tirx.Stmt, optional
        Runs before the first turn, while its copies are on their way.
    """

    def begin(turn) -> tirx.Stmt:
        return block(start(turn), ptx.commit())

    def turn(number) -> tirx.Stmt:
        later = number + index(ahead)
        more = when(later < index(turns), start(later)) if turns > ahead else None
        return block(ptx.wait(ahead - 1), read(number), more, ptx.commit(), use(number))

    return block(scope.loop(ahead, begin, "begin"), first, scope.loop(turns, turn, "turn"))

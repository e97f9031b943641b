# SPDX-License-Identifier: Apache-2.0
"""Three ways of the tiles of two operands into shared memory, while other tiles are multiplied.

Prefetched   registers hold the tiles of the next round; every GPU, operands of plain GEMMs
Gathered     each element is computed where it goes, nothing is ahead; every GPU, windows (im2col)
Pipelined    asynchronous copies run several stages ahead; compute capability 8.0, tensor cores
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ...core.nest import Scope, block, index, on_chip
from ..launch import when
from . import ptx
from .gathered_operand import GatheredOperand
from .prefetched_operand import PrefetchedOperand
from .skeleton import Place, Staging, Thread
from .staged_operand import StagedOperand

Multiply = Callable[[object], tirx.Stmt]


class Prefetched(Staging):
    """Tiles pass through registers: those of the next round are in flight while the ones before are multiplied.

    Parameters
    ----------
    rounds : int
        Tiles of terms of a thread block.
    whole : bool
        Whether all terms of all of them exist.
    """

    def __init__(self, scope: Scope, left: PrefetchedOperand, right: PrefetchedOperand, rounds: int, whole: bool):
        super().__init__(rounds, [left.shared, right.shared, left.staged, right.staged])
        self.scope, self.left, self.right, self.whole = scope, left, right, whole

    def begin(self, place: Place, thread: Thread) -> tirx.Stmt:
        """Prefetch the first tiles."""
        return self._fetch(place, thread, index(0))

    def round(self, place: Place, thread: Thread, step, multiply: Multiply) -> tirx.Stmt:
        """Put the prefetched tiles, prefetch the next ones, multiply."""
        scope, rounds = self.scope, self.rounds
        put = on_chip(lambda: block(self.left.put(scope, thread.number), self.right.put(scope, thread.number)))
        later = step + index(1)
        more = (
            tirx.IfThenElse(step < index(rounds - 1), self._fetch(place, thread, later), None) if rounds > 1 else None
        )
        return block(put, more, on_chip(lambda: multiply(step)))

    def _fetch(self, place: Place, thread: Thread, step) -> tirx.Stmt:
        step = place.part * index(self.rounds) + step
        return block(
            self.left.fetch(self.scope, thread.number, place.batch, place.row, step, self.whole),
            self.right.fetch(self.scope, thread.number, place.batch, place.column, step, self.whole),
        )


class Gathered(Staging):
    """Threads gather the tiles of their slice and multiply them; many thread blocks hide the latency.

    Parameters
    ----------
    rounds : int
        Tiles of terms of a slice.
    """

    def __init__(self, left: GatheredOperand, right: GatheredOperand, rounds: int):
        super().__init__(rounds, [left.shared, right.shared])
        self.left, self.right = left, right

    def round(self, place: Place, thread: Thread, step, multiply: Multiply) -> tirx.Stmt:
        """Gather tiles, and multiply them."""
        step = thread.slice * index(self.rounds) + step
        return block(
            self.left.gather(place.batch, place.row, step, thread),
            self.right.gather(place.batch, place.column, step, thread),
            on_chip(lambda: multiply(step)),
        )


class Pipelined(Staging):
    """Asynchronous copies fill the stage that comes `ahead` rounds later.

    Parameters
    ----------
    memory : buffer
        Shared memory of the thread block.
    rounds, whole
        As of `Prefetched`.
    stages : int
        Tiles of each operand in shared memory.
    asynchronous : bool
        Products run while the next round begins (wgmma): a stage is read for one round more.
    """

    def __init__(
        self,
        scope: Scope,
        left: StagedOperand,
        right: StagedOperand,
        memory,
        rounds: int,
        whole: bool,
        stages: int,
        asynchronous: bool,
    ):
        super().__init__(rounds, [memory], [each.held for each in (left, right) if not each.copied])
        self.scope, self.left, self.right, self.memory = scope, left, right, memory
        self.whole, self.asynchronous = whole, asynchronous
        self.ahead = stages - 2 if asynchronous else stages - 1

    def declare(self) -> tirx.Stmt:
        """Keep the size of shared memory."""
        return ptx.whole(self.memory)

    def begin(self, place: Place, thread: Thread) -> tirx.Stmt:
        """Start the first stages."""

        def first(step):
            brought = block(self._start(place, thread, step), *self._put(place, thread, step))
            exists = None if self.rounds >= self.ahead else step < index(self.rounds)
            return block(when(exists, brought), ptx.commit())

        return self.scope.loop(self.ahead, first, "begin")

    def round(self, place: Place, thread: Thread, step, multiply: Multiply) -> tirx.Stmt:
        """Wait for the stage of a round, start a later one, multiply, and put what goes through registers."""
        later, some = step + index(self.ahead), self.rounds > self.ahead
        more = later < index(self.rounds)
        begin = tirx.IfThenElse(more, self._start(place, thread, later), None) if some else None
        stored = [each for each in self._put(place, thread, later) if each is not None] if some else []
        after = tirx.IfThenElse(more, block(*stored), None) if stored else None
        product = multiply(place.part * index(self.rounds) + step)
        seen = ptx.publish() if self.asynchronous else None
        return block(ptx.wait(self.ahead - 1), seen, ptx.barrier(), begin, ptx.commit(), product, after)

    def end(self) -> tirx.Stmt:
        """Wait for products and copies: results pass through the same memory."""
        return block(ptx.wait_group(0) if self.asynchronous else None, ptx.wait(0), ptx.barrier())

    def _start(self, place: Place, thread: Thread, step) -> tirx.Stmt:
        at = place.part * index(self.rounds) + step
        return block(
            self.left.start(self.scope, thread.number, place.batch, place.row, at, self.whole),
            self.right.start(self.scope, thread.number, place.batch, place.column, at, self.whole),
        )

    def _put(self, place: Place, thread: Thread, step) -> list:
        at = place.part * index(self.rounds) + step
        return [each.put(self.scope, thread.number, at) for each in (self.left, self.right)]

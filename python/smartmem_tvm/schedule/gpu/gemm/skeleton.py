# SPDX-License-Identifier: Apache-2.0
"""The loop nest of every GEMM on a GPU: thread blocks x staged operands x a micro-kernel x an epilogue.

    each thread block (part of the terms, batch, row tile, column tile), in the order of `block_order`:
      sums = start                                 micro-kernel
      bring the first tiles of both operands       staging
      for each tile of terms:
        bring tiles, multiply those that are there     staging, which calls the micro-kernel
      finish(sums)                                 micro-kernel, which hands results to the epilogue
    a second launch adds the partial sums          split-K only

The terms of a result are the products ``left[i, k] * right[k, j]`` that it adds up, one for each k. A tile of terms is
a range of k: the rows of the left operand, and the columns of the right one, that shared memory holds for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import gcd
from typing import NamedTuple, Protocol

from tvm import tirx

from ...core.nest import Scope, allocate, block, index, scratch, store
from ...core.words import as_bytes
from ..launch import launch
from .block_order import place_of
from .product import MatmulProduct
from .split_k import add_parts

REDUCE_THREADS = 128  # threads, at most, of a thread block that adds partial sums (split-K): assumed, never tuned


class Place(NamedTuple):
    """Expressions for the part of a product that a thread block computes.

    Attributes
    ----------
    part : expression
        Number of its part of the terms (split-K).
    batch : expression
    row, column : expression
        Numbers of its tile.
    """

    part: object
    batch: object
    row: object
    column: object


class Thread(NamedTuple):
    """Expressions for the place of a thread in a thread block.

    Attributes
    ----------
    number : expression
        Number of the thread in its thread block.
    slice : expression
        Number of its slice of the terms in shared memory.
    within : expression
        Its number in the slice, or its lane if the threads of a warp multiply together.
    row, column : expression
        The place of its register tile, or of its warp, in the tile of results.
    """

    number: object
    slice: object
    within: object
    row: object
    column: object


class GemmTile(Protocol):
    """The fields of a tile that the skeleton reads."""

    rows: int
    columns: int
    threads: int
    splits: int
    band: int


class GpuEpilogue:
    """The end of a sum: it is finished and stored as a result, or for split-K stored as a partial sum.

    Parameters
    ----------
    parts : buffer, optional
        Partial sums of shape (splits, batch, rows, columns).
    """

    def __init__(self, product: MatmulProduct, parts=None):
        self.product, self.parts = product, parts

    @property
    def start(self):
        """The start value of sums: the reduction's, or for split-K zero, as the second launch adds the reduction's."""
        init = self.product.reduction.init
        return init if self.parts is None else tirx.const(0, self.parts.ty.dtype)

    def run(self, most: int) -> int:
        """Return how many adjacent columns, at most `most`, are finished and stored as one vector."""
        return self.product.result_run(most) if self.parts is None else gcd(self.product.columns, most)

    def store(self, value, place: Place, row, column) -> tirx.Stmt:
        """Store the sum of a row and a column of the product."""
        if self.parts is not None:
            return store(self.parts, value, place.part, place.batch, row, column)
        return self.product.result(value, place.batch, row, column)


class GpuMicroKernel(Protocol):
    """The statements by which a thread multiplies tiles that are in shared memory.

    Attributes
    ----------
    buffers : list
        Registers and shared memory for sums and for the operands of a step.
    """

    @property
    def buffers(self) -> list:
        """See above."""

    def thread(self, number) -> Thread:
        """Return the place of thread `number`."""

    def start(self, value) -> tirx.Stmt:
        """Set the sums to their start value."""

    def multiply(self, thread: Thread, step) -> tirx.Stmt:
        """Add the products of tile `step` of the terms, of which shared memory has both operands."""

    def finish(self, place: Place, thread: Thread, epilogue: GpuEpilogue) -> tirx.Stmt:
        """Add the sums of slices, and hand each result that exists to the epilogue."""


class Staging(ABC):
    """How tiles of both operands come into shared memory, while other tiles are multiplied.

    Parameters
    ----------
    rounds : int
        Tiles of terms that a thread multiplies, one after the other.
    buffers, held : list
        Shared memory and registers; `buffers` are declared before those of the micro-kernel, `held` after them.
    """

    def __init__(self, rounds: int, buffers: list, held: list | None = None):
        self.rounds, self.buffers, self.held = rounds, buffers, held or []

    def declare(self) -> tirx.Stmt | None:
        """Return the statement that comes before all others, or None."""
        return None

    def begin(self, place: Place, thread: Thread) -> tirx.Stmt | None:
        """Bring the tiles that the first round needs."""
        return None

    @abstractmethod
    def round(self, place: Place, thread: Thread, step, multiply: Callable[[object], tirx.Stmt]) -> tirx.Stmt:
        """Return round `step`: multiply its tiles, and bring later ones; `multiply` takes the number of a tile."""

    def end(self) -> tirx.Stmt | None:
        """Wait for the last products, and until shared memory may be overwritten, where TVM inserts no barriers."""
        return None


class GpuGemm:
    """The loop nest of a product.

    Parameters
    ----------
    product : MatmulProduct
        Has its extents, operands and epilogue.
    adding : int
        Threads of a thread block of the second launch, which adds partial sums.
    """

    def __init__(
        self,
        scope: Scope,
        product: MatmulProduct,
        tile: GemmTile,
        staging: Staging,
        micro: GpuMicroKernel,
        adding: int = REDUCE_THREADS,
    ):
        self.scope, self.product, self.tile, self.adding = scope, product, tile, adding
        self.staging, self.micro = staging, micro
        dtype = str(product.reduction.accumulator.ty.dtype)
        self.parts = scratch([tile.splits, product.batch, product.rows, product.columns], dtype, "parts")
        self.epilogue = GpuEpilogue(product, self.parts if tile.splits > 1 else None)

    def kernel(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        if self.tile.splits == 1:
            return as_bytes(self._product(), self.product.words)
        adding = add_parts(self.product, self.parts, self.adding, self.scope)
        return as_bytes(allocate([self.parts], block(self._product(), adding)), self.product.words)

    def _product(self) -> tirx.Stmt:
        tile, scope, product = self.tile, self.scope, self.product
        rows, columns = -(-product.rows // tile.rows), -(-product.columns // tile.columns)

        def thread(number, thread):
            tiles = place_of(number, rows, columns, min(tile.band or columns, columns))
            whole = tirx.floordiv(number, index(rows * columns))
            batch, part = tirx.floormod(whole, index(product.batch)), tirx.floordiv(whole, index(product.batch))
            place = Place(*(scope.analyzer.simplify(each) for each in (part, batch, *tiles)))
            return self._thread(place, self.micro.thread(thread))

        return launch(scope, tile.splits * product.batch * rows * columns, tile.threads, thread)

    def _thread(self, place: Place, thread: Thread) -> tirx.Stmt:
        staging, micro, epilogue = self.staging, self.micro, self.epilogue

        def round_(step):
            return staging.round(place, thread, step, lambda at: micro.multiply(thread, at))

        body = block(
            staging.declare(),
            micro.start(epilogue.start),
            staging.begin(place, thread),
            self.scope.loop(staging.rounds, round_, "step"),
            staging.end(),
            micro.finish(place, thread, epilogue),
        )
        return allocate([*staging.buffers, *micro.buffers, *staging.held], body)

# SPDX-License-Identifier: Apache-2.0
"""The micro-kernels of tensor cores: warps (``mma.sync``), and groups of four warps (``wgmma``).

    for each 32 bytes of terms of the warp's slice:    32 bytes, 16 terms of float16 or bfloat16, 8 of tf32
      load fragments of both operands                  shared memory -> registers; wgmma reads shared memory itself
      sums += left @ right                             mma.sync: 16 x 8 results; wgmma: 64 x the warp's columns
    16 rows of each warp at a time:
      put sums                                         registers -> shared memory
      out[f(i, j)] = finish(sums of all slices)        vectors along the columns

Sums are float32; those of bytes are 32-bit integers, and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from ...core.nest import SERIAL, UNROLL, Scope, block, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import registers, when
from ..machine import FLOAT_BYTES, VECTOR, WARP
from . import ptx
from .skeleton import GpuEpilogue, Place, Thread
from .staged_operand import StagedOperand

GROUP_WARPS, GROUP_ROWS = 4, 64  # warps of a warpgroup, and rows of one wgmma: by definition of PTX


def fragment(buffer, number: int, count: int) -> list:
    """Return the `count` registers of fragment `number`."""
    return [buffer[index(number * count + n)] for n in range(count)]


@dataclass(eq=False)
class WarpProducts:
    """The products of a warp, by ``mma.sync``.

    Attributes
    ----------
    sums, left, right : buffer
        Registers of fragments: `rows` x `columns` of sums, `columns` of the right operand, any number of the left one.
    rows, columns : int
        Number of fragments of results along the rows (16 each) and along the columns (8 each).
    rows_innermost : bool
        Whether the inner loop is over the rows: a right fragment is multiplied by all left ones before the next.
    """

    sums: object
    left: object
    right: object
    rows: int
    columns: int
    element: ptx.Element
    rows_innermost: bool = False

    def over(self, steps: int, load: Callable, left_at: Callable = lambda n, i: i) -> list[tirx.Stmt]:
        """Return the products of `steps` steps, each as many terms as an instruction multiplies.

        Parameters
        ----------
        load : callable
            Number of a step -> statements that load its fragments.
        left_at : callable
            ``(step, row) -> number`` of a fragment in `left`.
        """
        made, rows, columns = [], range(self.rows), range(self.columns)
        order = (
            [(i, j) for j in columns for i in rows] if self.rows_innermost else [(i, j) for i in rows for j in columns]
        )
        for n in range(steps):
            made += load(n)
            made += [self._add(left_at(n, i), i, j) for i, j in order]
        return made

    def _add(self, left: int, i: int, j: int) -> tirx.Stmt:
        sums = fragment(self.sums, i * self.columns + j, ptx.SUMS)
        operands = fragment(self.left, left, ptx.LEFT), fragment(self.right, j, ptx.RIGHT)
        return ptx.multiply(sums, *operands, self.element)


def group_products(
    sums: list, steps: int, left: Callable, right: Callable, element: ptx.Element, transposed: tuple, add: bool = True
) -> list[tirx.Stmt]:
    """Return the statements that start the products of a warpgroup, by ``wgmma``, and commit them as one set.

    Parameters
    ----------
    sums : list
        All registers of sums of a thread.
    left, right : callable
        Number of a step -> descriptor of the operand in shared memory (`StagedOperand.matrix`); on the left, a list of
        registers is possible too.
    transposed, add
        See `ptx.multiply_group`; without `add`, the first step sets the sums.
    """
    made = [ptx.begin_group()]
    for n in range(steps):
        made.append(ptx.multiply_group(sums, left(n), right(n), element, transposed, add or n > 0))
    return [*made, ptx.end_group()]


class Mma:
    """The micro-kernel of ``mma.sync``: each warp has the sums of a tile of fragments.

    Parameters
    ----------
    tile : MatrixTile
    left, right : StagedOperand
    memory : buffer
        Shared memory: of the stages, and of sums when the stages are no longer needed.
    """

    asynchronous = False

    def __init__(self, scope: Scope, tile, left: StagedOperand, right: StagedOperand, element: ptx.Element, memory):
        self.scope, self.tile, self.left, self.right = scope, tile, left, right
        self.element, self.memory = element, memory
        self.fragment_rows, self.fragment_columns = tile.warp_rows // ptx.ROWS, tile.warp_columns // ptx.COLUMNS
        in_registers, self.sum_type = element.sums
        self.sums = registers(tile.sums, in_registers, "sums")
        self.left_fragments = registers(self.fragment_rows * ptx.LEFT, "uint32", "down")
        self.right_fragments = registers(self.fragment_columns * ptx.RIGHT, "uint32", "across")
        # Each sum that is read back has a register of its own: TVM's code generator would merge equal loads.
        vectors = self.fragment_rows * tile.slices * self._rounds
        self.read_back = registers(vectors * VECTOR, self.sum_type, "lines")
        self.elements_per_sum = elements_per_sum(element)

    @property
    def _rounds(self) -> int:
        """Vectors that each thread finishes, of 16 rows of every warp."""
        tile = self.tile
        return -(-tile.warps_down * ptx.ROWS * tile.columns // VECTOR // tile.threads)

    @property
    def buffers(self) -> list:
        """Registers of sums, of sums that are read back from shared memory, and of fragments."""
        return [self.sums, self.read_back, self.left_fragments, self.right_fragments]

    def thread(self, number) -> Thread:
        """Return the slice, row and column of a thread's warp, and its lane."""
        tile, simplify = self.tile, self.scope.analyzer.simplify
        warp, lane = tirx.floordiv(number, index(WARP)), tirx.floormod(number, index(WARP))
        row = tirx.floormod(warp, index(tile.warps_down))
        column = tirx.floormod(tirx.floordiv(warp, index(tile.warps_down)), index(tile.warps_across))
        part = tirx.floordiv(warp, index(tile.warps_down * tile.warps_across))
        return Thread(number, *map(simplify, (part, lane, row, column)))

    def start(self, _) -> tirx.Stmt:
        """Set the sums to zero."""
        zero = tirx.const(0, self.sums.ty.dtype)
        return self.scope.loop(self.tile.sums, lambda i: store(self.sums, zero, i), "i", UNROLL)

    def multiply(self, thread: Thread, step) -> tirx.Stmt:
        """Add the products of stage `step`."""
        rows, columns = thread.row * index(self.tile.warp_rows), thread.column * index(self.tile.warp_columns)
        pairs = self.fragment_rows, self.fragment_columns // 2

        def load(n: int) -> list[tirx.Stmt]:
            at = thread.within, self._term(thread, n), step
            left = self.left.fragments(self.left_fragments, 0, rows, *at, pairs[0], True)
            return [*left, *self.right.fragments(self.right_fragments, 0, columns, *at, pairs[1], False)]

        sizes = self.fragment_rows, self.fragment_columns
        products = WarpProducts(self.sums, self.left_fragments, self.right_fragments, *sizes, self.element)
        return block(*products.over(self.tile.steps(self.element), load))

    def _term(self, thread: Thread, n: int):
        """Return the first term of step `n` of a slice."""
        return (thread.slice * index(self.tile.steps(self.element)) + index(n)) * index(self.element.terms)

    # -- results -----------------------------------------------------------------------------------------------------

    def finish(self, place: Place, thread: Thread, epilogue: GpuEpilogue) -> tirx.Stmt:
        """Store the results, 16 rows of each warp at a time."""
        blocks = []
        for i in range(self.fragment_rows):
            again = ptx.barrier() if i else None
            rows = self._finish_rows(place, i, thread.number, epilogue)
            blocks += [again, *self._put_sums(i, thread), ptx.barrier(), rows]
        return block(*blocks)

    def _put_sums(self, i: int, thread: Thread) -> list[tirx.Stmt]:
        tile, lane = self.tile, thread.within
        first = (thread.slice * index(tile.warps_down) + thread.row) * index(ptx.ROWS)
        first = first + tirx.floordiv(lane, index(4))
        stores = []
        for j in range(self.fragment_columns):
            across = thread.column * index(tile.warp_columns) + index(j * ptx.COLUMNS)
            across = across + tirx.floormod(lane, index(4)) * index(2)
            at = (i * self.fragment_columns + j) * ptx.SUMS
            for half in range(2):
                where = (first + index(half * 8)) * index(tile.result_pitch) + across
                pair = [self.sums[index(at + half * 2 + n)] for n in range(2)]
                at_pair = ptx.address(self.memory, where * index(self.elements_per_sum))
                stores.append(ptx.write_pair(at_pair, *pair, self.element))
        return stores

    def _finish_rows(self, place: Place, i: int, number, epilogue: GpuEpilogue) -> tirx.Stmt:
        tile, product, simplify = self.tile, epilogue.product, self.scope.analyzer.simplify
        rows, across = tile.warps_down * ptx.ROWS, tile.columns // VECTOR
        total, run = rows * across, epilogue.run(VECTOR)

        def vector(c):
            at = simplify(c * index(tile.threads) + number)
            held, column = tirx.floordiv(at, index(across)), tirx.floormod(at, index(across)) * index(VECTOR)
            first = (index(i * self._rounds) + c) * index(tile.slices * VECTOR)
            read = [self._read(first, other, held, column) for other in range(tile.slices)]
            warp, inside = tirx.floordiv(held, index(ptx.ROWS)), tirx.floormod(held, index(ptx.ROWS))
            row = place.row * index(tile.rows) + warp * index(tile.warp_rows) + index(i * ptx.ROWS) + inside
            row = simplify(row)
            column = simplify(place.column * index(tile.columns) + column)
            finish = self._results(place, row, column, first, run, epilogue)
            if product.rows % tile.rows:
                finish = tirx.IfThenElse(row < index(product.rows), finish, None)
            done = block(*read, finish)
            return done if total % tile.threads == 0 else when(at < index(total), done)

        # Unrolled here: in a loop TVM would merge the registers of all rounds.
        return block(*(vector(index(c)) for c in range(self._rounds)))

    def _read(self, first, other: int, held, column) -> tirx.Stmt:
        tile = self.tile
        row = held + index(other * tile.warps_down * ptx.ROWS)
        place = (row * index(tile.result_pitch) + column) * index(self.elements_per_sum)
        numbers = [self.read_back[first + index(other * VECTOR + n)] for n in range(VECTOR)]
        return ptx.read_vector(numbers, ptx.address(self.memory, place), self.element)

    def _results(self, place: Place, row, column, first, run: int, epilogue: GpuEpilogue) -> tirx.Stmt:
        columns, scope = epilogue.product.columns, self.scope
        stores = []
        for begin in range(0, VECTOR, run):
            at = column + index(begin)

            def result(v, begin=begin, at=at):
                total = self.read_back[first + index(begin) + v]
                for other in range(1, self.tile.slices):
                    total = total + self.read_back[first + index(other * VECTOR + begin) + v]
                return scope.simplify(epilogue.store(total, place, row, at + v))

            stored = scope.loop(run, result, "v", VECTORIZED if run > 1 else SERIAL)
            exists = None if columns % self.tile.columns == 0 else at < index(columns)
            stores.append(when(exists, stored))
        return block(*stores)


class Wgmma(Mma):
    """The micro-kernel of warpgroups: four warps multiply 64 rows from shared memory, asynchronously."""

    asynchronous = True

    @property
    def buffers(self) -> list:
        """Without fragments: instructions read shared memory."""
        return [self.sums, self.read_back]

    def multiply(self, thread: Thread, step) -> tirx.Stmt:
        """Start the products of stage `step`, and wait for those of the stage before."""
        first = tirx.floordiv(thread.row, index(GROUP_WARPS)) * index(GROUP_ROWS)
        columns = thread.column * index(self.tile.warp_columns)

        def left(n: int):
            return self.left.matrix(first, self._term(thread, n), step)

        def right(n: int):
            return self.right.matrix(columns, self._term(thread, n), step)

        sums: Sequence = [self.sums[index(n)] for n in range(self.tile.sums)]
        transposed = (not self.left.along_depth, not self.right.along_depth)
        steps = self.tile.steps(self.element)
        return block(*group_products(sums, steps, left, right, self.element, transposed), ptx.wait_group(1))


def elements_per_sum(element: ptx.Element) -> int:
    """Return how many elements of shared memory take the bytes of one float32 sum."""
    return FLOAT_BYTES // element.bytes

# SPDX-License-Identifier: Apache-2.0
"""The path of one operand of a matrix product: global memory -> a stage of shared memory -> fragments in registers.

    start(step)    copies tile `step` into its stage; an operand with arithmetic, or whose elements are not contiguous,
                   goes into registers first, and put(step) stores these
    fragments(k)   loads the operand of one instruction

An *outer index* is a row of the left operand, or a column of the right one. A stage has a row for each outer index if
the operand's terms are innermost in memory, else a row for each term. The vectors of a row are swizzled: the eight rows
that `ldmatrix` reads at a time are then in different banks. Rows (columns) of the operand past the end repeat the last
one, and their results are not stored. Terms past the end are zeros.
"""

from __future__ import annotations

from functools import cached_property

from tvm import ir, tirx

from ...core.nest import SERIAL, Scope, fresh, index, store
from ...core.nest import VECTOR as VECTORIZED
from .. import machine
from ..launch import registers
from ..vectors import filling, guarded
from . import ptx
from .chosen_vectors import chosen_run, fill
from .copied_tile import CopiedTile
from .operand import Operand


def goes_by_itself(operand: Operand, element: ptx.Element) -> bool:
    """Whether asynchronous copies can bring an operand: a plain load, or padding, of 4 contiguous bytes or more."""
    least = machine.LEAST_COPY_BYTES // element.bytes
    ways = (True,) if element.terms_innermost else (True, False)
    return _is_read(operand) and any(operand.run(along_depth, least) == least for along_depth in ways)


def _is_read(operand: Operand) -> bool:
    return isinstance(guarded(operand.value(index(0), index(0), index(0)))[1], ir.TensorLoad)


def lies_along_depth(operand: Operand) -> bool:
    """Whether terms are innermost in global memory; a row in shared memory is then an outer index with its terms."""
    return operand.closeness(True) >= operand.closeness(False)


class StagedOperand(CopiedTile):
    """`size` rows or columns and `depth` terms of an operand, in each of `stages` stages, copied by `threads` threads.

    Parameters
    ----------
    element : Element
        Type of the operand.

    Attributes
    ----------
    buffer, start_at : buffer, int
        Shared memory of the thread block, and the element at which the stages begin in it; the caller sets them.
    """

    def __init__(
        self, name: str, operand: Operand, element: ptx.Element, size: int, depth: int, threads: int, stages: int
    ):
        self.element = element
        self.name, self.operand, self.size, self.depth = name, operand, size, depth
        self.threads, self.stages = threads, stages
        self.buffer, self.start_at = None, 0

    @cached_property
    def along_depth(self) -> bool:
        """Whether a row in shared memory is an outer index with its terms."""
        return self.element.terms_innermost or lies_along_depth(self.operand)

    @cached_property
    def width(self) -> int:
        """Elements of a vector load."""
        inner = self.depth if self.along_depth else self.size
        # CUDA has vectors of four integers.
        integers = not _is_read(self.operand) and any("int" in str(each.dtype) for each in self.operand.sources)
        most = machine.VECTOR if integers else self.element.row
        run = self.operand.run(self.along_depth, most)
        if run == 1:
            run = chosen_run(self.operand, self.along_depth, most)
        while inner % run:
            run //= 2
        return run

    @cached_property
    def copied(self) -> bool:
        """Whether asynchronous copies bring the operand to shared memory."""
        return self.width * self.element.bytes >= machine.LEAST_COPY_BYTES and _is_read(self.operand)

    @property
    def rows(self) -> int:
        """Rows of a stage."""
        return self.size if self.along_depth else self.depth

    @property
    def block(self) -> int:
        """Contiguous elements of a row: rows are cut into blocks of 128, 64 or 32 bytes."""
        inner = self.depth if self.along_depth else self.size
        return next(width for width in (128, 64, 32) if inner * self.element.bytes % width == 0) // self.element.bytes

    @property
    def elements(self) -> int:
        """Elements of one stage."""
        return self.size * self.depth

    @cached_property
    def held(self):
        """Registers for elements that asynchronous copies do not bring."""
        return registers(self._rounds * self.width, self.element.dtype, f"{self.name}_held")

    # -- into shared memory ------------------------------------------------------------------------------------------

    def start(self, scope: Scope, thread, batch, tile, step, whole: bool) -> tirx.Stmt:
        """Start to copy tile number `tile`, terms ``[step * depth, ...)``; `whole` if all of them exist."""

        def vector(c, number):
            row, vec = self._place(number)
            outer, k = self._outer_and_term(scope, row, vec, tile, step)
            there = None if whole else k < index(self.operand.depth)
            if not self.copied:
                return self._hold(scope, c, batch, outer, k, there)
            value = self.operand.value(batch, outer, k)
            (condition, load), fill = guarded(value), filling(value)
            if condition is not None:
                condition = scope.analyzer.simplify(condition)
                there = there if fill else condition if there is None else tirx.And(there, condition)
            source, place = tirx.address_of(scope.simplify(load)), ptx.address(self.buffer, self._at(row, vec, step))
            copy = ptx.copy(place, source, self.width * self.element.bytes, there)
            return tirx.IfThenElse(condition, copy, ptx.fill(place, fill, self.width)) if fill else copy

        return self._each(scope, thread, vector)

    def _hold(self, scope: Scope, c, batch, outer, k, there) -> tirx.Stmt:
        first, v = c * index(self.width), fresh("v")
        scope.analyzer.bind(v, ir.Range(index(0), index(self.width)))
        value = self.operand.value(batch, *((outer, k + v) if self.along_depth else (outer + v, k)))
        value = value if str(value.ty.dtype) == self.element.dtype else value.astype(self.element.dtype)

        def zero(v):
            return store(self.held, tirx.const(0, self.element.dtype), first + v)

        kind = VECTORIZED if self.width > 1 else SERIAL
        load = fill(scope, self.held, first, v, value, self.width)
        return load if there is None else tirx.IfThenElse(there, load, scope.loop(self.width, zero, "v", kind))

    def put(self, scope: Scope, thread, step) -> tirx.Stmt | None:
        """Store the held registers to shared memory; None if asynchronous copies bring the operand."""
        if self.copied:
            return None
        kind = VECTORIZED if self.width > 1 else SERIAL

        def vector(c, number):
            at = self._at(*self._place(number), step)

            def element(v):
                return scope.simplify(store(self.buffer, self.held[c * index(self.width) + v], at + v))

            return scope.loop(self.width, element, "v", kind)

        return self._each(scope, thread, vector)

    def _place(self, number) -> tuple:
        """Return (row of a stage, first element in it) of vector `number`.

        Vectors are numbered along a row; if its blocks are narrower than all banks together, along a block, since the
        other blocks of a row are in the same banks.
        """
        inner = self.depth if self.along_depth else self.size
        narrow = self.block * self.element.bytes < machine.BANKS
        across, rows = index((self.block if narrow else inner) // self.width), index(self.rows)
        row = tirx.floordiv(number, across)
        vec = tirx.floormod(number, across) * index(self.width)
        if narrow and inner > self.block:
            return tirx.floormod(row, rows), vec + tirx.floordiv(row, rows) * index(self.block)
        return row, vec

    def _outer_and_term(self, scope: Scope, row, vec, tile, step) -> tuple:
        outer, k = (row, vec) if self.along_depth else (vec, row)
        outer, extent = outer + tile * index(self.size), self.operand.outer
        if extent % self.size:
            last = extent - 1 if self.along_depth else extent - self.width
            outer = tirx.min(outer, index(last))
        simplify = scope.analyzer.simplify
        return simplify(outer), simplify(k + step * index(self.depth))

    def _at(self, row, vec, step):
        """Return the place of element `vec` of a row: vectors of a block are swizzled against bank conflicts."""
        width = index(self.element.row)
        vectors = self.block // self.element.row
        vector = tirx.floordiv(tirx.floormod(vec, index(self.block)), width)
        turn = tirx.floormod(tirx.floordiv(row * index(self._pairs), index(8 // vectors)), index(vectors))
        # TVM derives no bounds of an exclusive or, and would compute the whole index in 64 bits.
        exchanged = tirx.bitwise_xor(vector.astype("int32"), turn.astype("int32"))
        vector = tirx.bitwise_and(exchanged, tirx.const(vectors - 1, "int32")).astype("int64")
        inside = row * index(self.block) + vector * width + tirx.floormod(vec, width)
        return self._block_at(tirx.floordiv(vec, index(self.block)), step) + inside

    @property
    def _pairs(self) -> int:
        """Vectors of a row that a warp reads at once: 1 with ldmatrix, 2 if it reads single words of four rows."""
        return 1 if self.by_rows else 2

    @property
    def by_rows(self) -> bool:
        """Whether ldmatrix reads the operand."""
        return self.along_depth or self.element.turns

    def _block_at(self, number, step):
        stage = tirx.floormod(step, index(self.stages)) * index(self.elements)
        return index(self.start_at) + stage + number * index(self.rows * self.block)

    # -- out of shared memory ------------------------------------------------------------------------------------------

    def fragments(self, words, first: int, outer, lane, k, step, pairs: int, left: bool) -> list[tirx.Stmt]:
        """Load `pairs` times 16 outer indices and the terms of an instruction from `k` on, four registers each.

        The four matrices of eight rows by 16 bytes of terms are (outer, terms) in the order (0, 0), (1, 0), (0, 1),
        (1, 1) for the left operand, and (0, 0), (0, 1), (1, 0), (1, 1) for the right one, which are two fragments.
        """
        loads = []
        for pair in range(pairs):
            four = [words[index(first + pair * 4 + i)] for i in range(4)]
            at = outer + index(pair * 16)
            if self.by_rows:
                loads.append(ptx.load_fragments(four, self._row_of(at, lane, k, step, left), not self.along_depth))
            else:
                loads += self._words(four, at, lane, k, step, left)
            loads += [ptx.round_word(word) for word in four if self.element.rounded]
        return loads

    def _row_of(self, outer, lane, k, step, left: bool):
        """Return the address of a warp lane's row for `ptx.load_fragments`."""
        part, row = tirx.floordiv(lane, index(8)), tirx.floormod(lane, index(8))
        fast, slow = tirx.floormod(part, index(2)), tirx.floordiv(part, index(2))
        over_outer, over_terms = (fast, slow) if left else (slow, fast)
        over_outer, over_terms = over_outer * index(8), over_terms * index(self.element.row)
        if self.along_depth:
            return ptx.address(self.buffer, self._at(outer + over_outer + row, k + over_terms, step))
        return ptx.address(self.buffer, self._at(k + over_terms + row, outer + over_outer, step))

    def _words(self, four: list, outer, lane, k, step, left: bool) -> list[tirx.Stmt]:
        """Load the same registers one by one, for four-byte numbers in rows of one term each."""
        mine, term = tirx.floordiv(lane, index(4)), tirx.floormod(lane, index(4))
        loads = []
        for number, word in enumerate(four):
            fast, slow = number % 2, number // 2
            over_outer, over_terms = (fast, slow) if left else (slow, fast)
            row, vec = k + index(over_terms * self.element.row) + term, outer + index(over_outer * 8) + mine
            loads.append(ptx.load_word(word, ptx.address(self.buffer, self._at(row, vec, step))))
        return loads

    def matrix(self, outer, k, step):
        """Return the descriptor of the rows (columns) from `outer` on, and of an instruction's terms from `k` on."""
        row, vec = (outer, k) if self.along_depth else (k, outer)
        first = self._block_at(tirx.floordiv(vec, index(self.block)), step)
        # The swizzle repeats every eight rows, and leaves the first vector of eight rows in its place.
        place = first + row * index(self.block) + tirx.floormod(vec, index(self.block))
        wide = self.element.bytes * self.block
        return ptx.matrix(ptx.address(self.buffer, place), wide, self.rows * wide, 8 * wide)


class StagedOuter(StagedOperand):
    """An operand whose steps go along its outer index: each stage has the next `size` rows, and all of their terms."""

    def _outer_and_term(self, scope: Scope, row, vec, tile, step) -> tuple:
        return super()._outer_and_term(scope, row, vec, step, index(0))

# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of a product of rows in bytes and a weight in codes: sums of a group are of integers.

    left[rows, step] = x[row, step]                              once, bytes, in the order of the codes in a word
    added[rows, block] = sum of x over the block                 once, where codes have a zero point
      for each block of steps:
        acc[rows, width] = -zero * added[i, block]               in registers
        for each word of the block:
          even, odd = word & 0x0f0f0f0f, word >> 4 & 0x0f0f0f0f      four unsigned bytes each, for all rows
          acc[i, j] += dot(even[j], left[i, 0:4]) + dot(odd[j], left[i, 4:8])
        sums[i, j] += scale[g, j] * row_scale[i, b] * float(acc[i, j])

With VNNI `dot` is one instruction, and codes of eight bits are four unsigned bytes already. Else it is the product and
sum of two bytes in 16 bits: half a byte times a byte, so that the sums of 32 steps stay within 16 bits. Codes of eight
bits are two halves there, and those of the upper one count sixteenfold.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from ....ir.codes import BYTE, BYTES_IN_WORD, FOUR, IN_WORD, WORD, codes_of
from ....ir.packings import QUADS
from ...core.nest import SERIAL, UNROLL, allocate, block, index, scratch, store
from ..coded_plan import CodedPlan
from ..packed_vectors import adder, bytes_added, shorts_added
from .axis import Strip
from .coded_nest import CodedNest

_FLOAT, _SHORT = "float32", "int16"
_HALVES = 0x0F0F0F0F
"""Bits: the lower half of each byte of a word, by definition of codes of four bits."""
_SHORT_STEPS = 32
"""Steps whose products of half a byte and a byte fit into 16 bits, two of four in each, by definition:
16 * 15 * 128 < 2 ** 15."""


class IntegerNest(CodedNest):
    """The tasks of a product whose rows are in codes, too."""

    def __init__(self, plan: CodedPlan):
        super().__init__(plan)
        self.left = scratch([plan.rows, plan.steps], BYTE, "left")
        self.added = scratch([plan.rows, self.blocks], WORD, "added")

    @property
    def blocks(self) -> int:
        """Blocks of steps that are not only padding."""
        return -(-self.plan.depth // self.plan.block)

    # -- the left operand --------------------------------------------------------------------------------------------

    def prepared(self) -> tirx.Stmt:
        """Return the copy of the rows' bytes, and their sums over blocks."""
        plan, scope = self.plan, self.scope
        eights, rest = divmod(plan.depth, IN_WORD)

        def put(i, first, t: int) -> tirx.Stmt:
            code = codes_of(plan.left(None, i, scope.index(first + index(t)))).load
            return store(self.left, scope.simplify(code), i, first + index(self._place(t)))

        def row(i) -> tirx.Stmt:
            zeros = scope.loop(
                plan.steps - eights * IN_WORD,
                lambda k: store(self.left, tirx.const(0, BYTE), i, index(eights * IN_WORD) + k),
                "k",
            )
            each = scope.loop(
                eights, lambda q: block(*(put(i, q * index(IN_WORD), t) for t in range(IN_WORD))), "q", SERIAL
            )
            last = [put(i, index(eights * IN_WORD), t) for t in range(rest)]
            return block(*([zeros] if plan.steps > eights * IN_WORD else []), each, *last)

        return block(scope.loop(plan.rows, row, "row"), self._sums() if self.has_zeros else None)

    def _place(self, step: int) -> int:
        """Return where a step of eight lies: in the order of codes in lower halves of a word, then upper ones."""
        return step if self.panels.bits != FOUR else step // 2 + BYTES_IN_WORD * (step % 2)

    def _sums(self) -> tirx.Stmt:
        plan, scope = self.plan, self.scope

        def one(i, b) -> tirx.Stmt:
            total = scratch([1], WORD, "total")

            def add(k) -> tirx.Stmt:
                return store(total, total[0] + self.left[i, b * index(plan.block) + k].astype(WORD), 0)

            steps = scope.loop(plan.block, add, "k")
            return allocate(
                [total], block(store(total, tirx.const(0, WORD), 0), steps, store(self.added, total[0], i, b))
            )

        return scope.loop(plan.rows, lambda i: scope.loop(self.blocks, lambda b: one(i, b), "b"), "row")

    # -- the micro-kernel --------------------------------------------------------------------------------------------

    def steps_of(self, rows: Strip, panel, column, sums) -> tirx.Stmt:
        """Return the loop over the blocks of steps of a tile."""
        return self.scope.loop(self.blocks, lambda b: self._block(rows, panel, column, b, sums), "block")

    def _block(self, rows: Strip, panel, column, b, sums) -> tirx.Stmt:
        """Return the products of one block of steps for the columns of a panel from `column` on."""
        plan, scope, panels = self.plan, self.scope, self.panels
        first = scope.index(b * index(plan.block))
        group = scope.index(tirx.floordiv(first, index(panels.group)))
        inside = scope.index(tirx.floormod(first, index(panels.group)))
        tile = _Tile(self, rows, panel, column, group)

        def word(start):
            def at(q) -> tirx.Stmt:
                place = scope.index(tirx.floordiv(inside + start, index(panels.in_word)) + q)
                return tile.word(place, scope.index(first + start + q * index(panels.in_word)))

            return at

        span = plan.block if tile.dots else min(plan.block, _SHORT_STEPS)
        counted, unit = span // panels.in_word, UNROLL if span <= IN_WORD else SERIAL

        def part(number, steps: int = counted) -> tirx.Stmt:
            return block(tile.begin(), scope.loop(steps, word(number * index(span)), "q", unit), tile.flush())

        whole, rest = divmod(plan.block, span)
        parts = [scope.loop(whole, part, "part") if whole > 1 else part(index(0))]
        parts += [part(index(whole), rest // panels.in_word)] if rest else []
        zero = panels.zeros is None and panels.zero
        start = tile.start(lambda i: self.added[rows.first + i, b] * tirx.const(-zero, WORD) if zero else None)

        def scaled(i: int, j):
            total = tile.total(i, j).astype(_FLOAT)
            if panels.zeros is not None:
                total = total - self._zero(panel, group, column + j) * self.added[rows.first + i, b].astype(_FLOAT)
            row_scale = codes_of(plan.left(None, rows.first + i, first)).scale
            factor = panels.scales[panel, group, column + j] * scope.simplify(row_scale)
            return store(sums, sums[i, column + j] + factor * total, i, column + j)

        return allocate(tile.buffers, block(start, *parts, self._each(rows.size, scaled)))


class _Tile:
    """The integer sums of one tile, and the vectors that are added to them.

    Parameters
    ----------
    nest : IntegerNest
        The product.
    panel, column, group : expression
        The tile's columns, and the group of its steps.
    """

    def __init__(self, nest: IntegerNest, rows: Strip, panel, column, group):
        self.nest, self.rows, self.at = nest, rows, (panel, group, column)
        plan, self.lanes = nest.plan, nest.plan.params.lanes
        self.vectors, self.dots = plan.tile_vectors, adder(QUADS, self.lanes, plan.params)
        self.halves = 1 if self.dots or nest.panels.bits == FOUR else 2
        count = plan.sums(rows.size) if self.dots else 1
        width = plan.tile_width
        self.sums = [[scratch([width], WORD, "acc") for _ in range(count)] for _ in range(rows.size)]
        shorts = 0 if self.dots else self.halves
        self.shorts = [[scratch([2 * width], _SHORT, "short") for _ in range(shorts)] for _ in range(rows.size)]
        self.used = 0

    @property
    def buffers(self) -> list:
        """The scratch buffers, all of which stay in registers."""
        return [each for line in (*self.sums, *self.shorts) for each in line]

    def total(self, i: int, j):
        """Return the sum of a row and a column."""
        first, *others = (own[j] for own in self.sums[i])
        for other in others:
            first = first + other
        return first

    def start(self, value) -> tirx.Stmt:
        """Return the first values of the sums: ``value(row)``, or zero where that is None."""
        zero = tirx.const(0, WORD)
        lines = []
        for i, line in enumerate(self.sums):
            known = value(i)
            values = [zero if known is None else known, *[zero] * (len(line) - 1)]
            lines += [self._fill(own, each, WORD, 1) for own, each in zip(line, values, strict=True)]
        return block(*lines)

    def _fill(self, buffer, value, kind: str, wide: int) -> tirx.Stmt:
        lanes = self.lanes * wide
        many = tirx.Broadcast(value, lanes)
        return block(*(tirx.BufferStore(buffer, many, [_ramp(v * lanes, lanes)]) for v in range(self.vectors)))

    def begin(self) -> tirx.Stmt | None:
        """Return the zeros of the sums in 16 bits."""
        zero = tirx.const(0, _SHORT)
        lines = [self._fill(own, zero, _SHORT, 2) for line in self.shorts for own in line]
        return block(*lines) if lines else None

    def flush(self) -> tirx.Stmt | None:
        """Return the addition of the sums in 16 bits to those in 32."""
        lines = []
        for (own,), line in zip(self.sums, self.shorts) if not self.dots else ():
            for v in range(self.vectors):
                place, value = _ramp(v * self.lanes, self.lanes), None
                for half, short in enumerate(line):
                    loaded = tirx.BufferLoad(short, [_ramp(2 * v * self.lanes, 2 * self.lanes)])
                    value = tirx.BufferLoad(own, [place]) if value is None else value
                    value = shorts_added(value, loaded, 16**half, self.lanes)
                lines.append(tirx.BufferStore(own, value, [place]))
        return block(*lines) if lines else None

    def word(self, place, step) -> tirx.Stmt:
        """Return the products of one word of each column, whose first step is `step`.

        Rows are outside of the vectors of columns, as LLVM keeps what several of these read in a register.
        """
        nest, four = self.nest, self.nest.panels.bits == FOUR
        panel, group, column = self.at
        starts = [nest.scope.index(column + index(v * self.lanes)) for v in range(self.vectors)]
        words = [tirx.BufferLoad(nest.panels.words, [panel, group, place, _ramp(at, self.lanes)]) for at in starts]
        lines: list[tirx.Stmt] = []
        for n in range(1 if self.dots and not four else 2):
            unpacked = [self._unpacked(word, n) for word in words]
            first = nest.scope.index(step + index(BYTES_IN_WORD * n if four else 0))
            for i in range(self.rows.size):
                lines += self._row(i, n, unpacked, tirx.Ramp(first, index(1), BYTES_IN_WORD))
        return block(*lines)

    def _unpacked(self, word, half: int):
        """Return a vector of four unsigned bytes of a vector of words: the lower or the upper halves of its bytes."""
        if self.dots and self.nest.panels.bits != FOUR:
            return word
        mask, shift = (tirx.Broadcast(tirx.const(each, WORD), self.lanes) for each in (_HALVES, FOUR))
        return tirx.bitwise_and(tirx.shift_right(word, shift) if half else word, mask)

    def _row(self, i: int, half: int, unpacked: Sequence, places) -> list[tirx.Stmt]:
        """Return the products of a row's bytes at some places and vectors of codes."""
        quad = tirx.BufferLoad(self.nest.left, [self.rows.first + i, places])
        quads, lines = tirx.Broadcast(tirx.reinterpret(WORD, quad), self.lanes), []
        if self.dots:
            own, lanes = self.sums[i][half % len(self.sums[i])], self.lanes
        else:
            own, lanes = self.shorts[i][half % self.halves], 2 * self.lanes
        for v, codes in enumerate(unpacked):
            place = _ramp(v * lanes, lanes)
            value = bytes_added(tirx.BufferLoad(own, [place]), codes, quads, self.lanes, self.dots)
            lines.append(tirx.BufferStore(own, value, [place]))
        return lines


def _ramp(first, lanes: int):
    return tirx.Ramp(index(first) if isinstance(first, int) else first, index(1), lanes)

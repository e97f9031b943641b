# SPDX-License-Identifier: Apache-2.0
"""Few rows times a weight in codes: a source of operands and a micro-kernel without shared memory for operands.

    each thread (slice of the depth, four columns), for each of its parts of groups:
      words[w, j] = panels[p, g, w, j];  scale[j]                source: vectors of four columns
      few[i, j] = 0                                              micro-kernel
      for each word w, for each of its codes t:
        few[i, j] += left[i, 8 w + t] * code(words[w, j], t)     left: vectors, the same for a row of threads
      sums[i, j] += scale[j] * few[i, j]
    sums of slices are added in shared memory, and finished

`unpacking` makes a number of a code without a conversion.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ....ir.codes import WORD
from ....ir.half import FLOAT, HALF
from ....target import Limits
from ...core.coded_panels import Panels
from ...core.nest import UNROLL, VECTOR, Scope, block, index, on_chip, store
from ..guards import guard
from ..launch import registers
from ..machine import VECTOR as WIDE
from ..sums import Sums
from . import ptx
from .operand import Operand
from .ring import Ring, in_turns
from .simt import as_vector
from .skeleton import Place, Staging, Thread
from .sliced_rows import SlicedRows
from .unpacking import Unpacking


class CodedWords(Staging):
    """The words and scales of a thread, which it keeps in registers; the micro-kernel reads the left operand itself.

    With several stages they come through shared memory, some turns ahead (`ring`).

    Parameters
    ----------
    panels : Panels
        The right operand.
    tile : CodedTile
    """

    def __init__(self, scope: Scope, panels: Panels, tile):
        self.scope, self.panels, self.tile = scope, panels, tile
        self.turns = panels.groups * int(panels.words.shape[2]) // tile.words
        self.words = registers(tile.words * WIDE, WORD, "words")
        self.scales = registers(WIDE, str(panels.scales.dtype), "scales")
        self.points = None if panels.zeros is None else registers(WIDE, str(panels.zeros.dtype), "points")
        points = [] if self.points is None else [self.points]
        held, rounds = [self.words, self.scales, *points], -(-self.turns // tile.slices)
        self.rings, self.ahead, self.steps = [], min(tile.stages - 1, rounds), rounds
        if tile.stages > 1:
            self.rings = [self._ring(each, n == 0) for n, each in enumerate(held)]
            rounds = 1
        super().__init__(rounds, [*(each.buffer for each in self.rings), *held])

    def _ring(self, registers, first: bool) -> Ring:
        """Return the ring of some registers of a thread; a kernel has dynamic shared memory for one."""
        many, memory = int(registers.shape[0]) // WIDE, "shared.dyn" if first else "shared"
        sizes = (WIDE, many, self.tile.threads, self.tile.stages)
        return Ring(self.scope, registers.name, str(registers.dtype), *sizes, memory)

    def declare(self) -> tirx.Stmt | None:
        """Keep the sizes of rings."""
        return block(*(ptx.whole(each.buffer) for each in self.rings)) if self.rings else None

    def end(self) -> tirx.Stmt | None:
        """Wait until rings may be overwritten by sums."""
        return ptx.barrier() if self.rings else None

    def round(self, place: Place, thread: Thread, step, multiply: Callable) -> tirx.Stmt:
        """Load words and scales, and multiply; `multiply` takes the number of a part of all groups."""
        if self.rings:
            return self._through_rings(place, thread, multiply)
        turn = self._turn(thread, step)
        loads = (
            as_vector(self.scope, WIDE, lambda v, b=buffer, n=n, value=value: store(b, value(v), index(n * WIDE) + v))
            for buffer, n, value in self._vectors(place, thread, turn)
        )
        return guard(self._there(turn), block(*loads, on_chip(lambda: multiply(turn))))

    def _through_rings(self, place: Place, thread: Thread, multiply: Callable) -> tirx.Stmt:
        rings = dict(zip((self.words, self.scales, self.points), self.rings, strict=False))

        def start(step) -> tirx.Stmt:
            turn = self._turn(thread, step)
            vectors = self._vectors(place, thread, turn)
            copies = (rings[buffer].copy(thread.number, step, n, value(index(0))) for buffer, n, value in vectors)
            return guard(self._there(turn), block(*copies))

        def read(step) -> tirx.Stmt:
            each = ((buffer, n) for buffer, ring in rings.items() for n in range(ring.many))
            return block(*(rings[buffer].read(thread.number, step, n, buffer, n * WIDE) for buffer, n in each))

        def use(step) -> tirx.Stmt:
            turn = self._turn(thread, step)
            return guard(self._there(turn), on_chip(lambda: multiply(turn)))

        return in_turns(self.scope, self.steps, self.ahead, start, read, use)

    def _turn(self, thread: Thread, step):
        return self.scope.analyzer.simplify(step * index(self.tile.slices) + thread.slice)

    def _there(self, turn) -> list:
        return [turn < index(self.turns)] if self.turns % self.tile.slices else []

    def _vectors(self, place: Place, thread: Thread, turn) -> list[tuple]:
        """Return (registers, number of a vector among them, its value as a function of its elements) of a turn."""
        panels, words, simplify = self.panels, self.tile.words, self.scope.analyzer.simplify
        column = simplify(place.column * index(self.tile.columns) + thread.column * index(WIDE))
        panel, first = (simplify(f(column, index(panels.width))) for f in (tirx.floordiv, tirx.floormod))
        if self.tile.columns * -(-panels.panels * panels.width // self.tile.columns) > panels.panels * panels.width:
            panel = tirx.min(panel, index(panels.panels - 1))
        each = index(int(panels.words.shape[2]) // words)
        group, part = (simplify(f(turn, each)) for f in (tirx.floordiv, tirx.floormod))

        def word(w: int) -> Callable:
            at = simplify(part * index(words) + index(w))
            return lambda v: panels.words[panel, group, at, first + v]

        found = [(self.words, w, word(w)) for w in range(words)]
        found.append((self.scales, 0, lambda v: panels.scales[panel, group, first + v]))
        if self.points is not None:
            found.append((self.points, 0, lambda v: panels.zeros[panel, group, first + v]))
        return found


class CodedRows(SlicedRows):
    """The micro-kernel: all rows and four columns of a thread.

    Parameters
    ----------
    source : CodedWords
        The right operand.
    left : Operand
        The left operand.
    factor : str
        The type of multiplications: float16 where the target has vectors of it, else float32.
    texels : bool
        Whether four neighbouring results are a texel, which one store writes.
    """

    def __init__(self, scope: Scope, source: CodedWords, left: Operand, factor: str, limits: Limits, texels: bool):
        super().__init__(scope, source.tile, WIDE, WIDE if texels else 1)
        self.source, self.left, self.panels = source, left, source.panels
        tile, panels = self.tile, self.panels
        centre = panels.zero if panels.zeros is None else 1 << panels.bits - 1
        # Short sums in float16 are of codes below one, so that they stay within its range.
        self.unit = 1.0 if factor == FLOAT else 2.0**-panels.bits
        self.codes, self.factor = Unpacking(panels.bits, factor, centre, self.unit), factor
        self.lanes = VECTOR if limits.half_lanes > 1 and factor == HALF else UNROLL
        self.short = Sums(scope, tile.results, factor, FLOAT, "few", WIDE, limits.half_lanes)
        self.few = self.short.few
        self.sums = registers(tile.results, FLOAT, "sums") if self.few is self.short.total else self.short.total
        self.vector = left.run(True, min(panels.in_word, left.most(limits)))
        self.right = registers(WIDE, factor, "codes")
        self.terms = registers(tile.rows * panels.in_word, factor, "terms")
        self.added = registers(tile.rows, FLOAT, "added")

    @property
    def buffers(self) -> list:
        """Registers, and shared memory for the sums of slices."""
        added = [self.added] if self.source.points is not None else []
        return [*self.merged, self.sums, self.few, self.right, self.terms, *added]

    # -- products ----------------------------------------------------------------------------------------------------

    def multiply(self, thread: Thread, step) -> tirx.Stmt:
        """Add the products of part `step` of the groups, whose words and scales are in registers."""
        panels, words, zero = self.panels, range(self.tile.words), tirx.const(0, FLOAT)
        first = self.scope.analyzer.simplify(step * index(self.tile.words))
        started = self._results(lambda n: store(self.few, tirx.const(0, self.few.dtype), n))
        nothing = [store(self.added, zero, i) for i in range(self.tile.rows)] if self.source.points is not None else []
        products = [each for w in words for each in self._word(self.scope.index(first + index(w)), w)]
        return block(started, *nothing, *products, self._results(lambda n: self._scaled(n, panels)))

    def _word(self, number, w: int) -> list[tirx.Stmt]:
        """Return the products of the codes of one word of each column."""
        rows, many = range(self.tile.rows), self.panels.in_word
        made = [self._terms(i, number) for i in rows]
        for t in range(many):

            def unpack(v, t=t):
                return store(self.right, self.codes.number(self.source.words[index(w * WIDE) + v], t), v)

            made.append(self.scope.loop(WIDE, unpack, "v", self.lanes))
            for i in rows:
                term = self.terms[index(i * many + t)]
                made += self.short.add(i, WIDE, term, lambda j: self.right[j])
                if self.source.points is not None:
                    made.append(store(self.added, self.added[index(i)] + term.astype(FLOAT), i))
        return made

    def _terms(self, row: int, number) -> tirx.Stmt:
        """Load the terms of a row that a word has codes for; zeros behind the depth."""
        panels, depth, width = self.panels, self.left.depth, self.vector
        many, simplify = panels.in_word, self.scope.analyzer.simplify
        whole = panels.groups * panels.group == depth

        def vector(q) -> tirx.Stmt:
            at = simplify(number * index(many // width) + q)
            place = q * index(width) + index(row * many)

            def value(v):
                found = self.left.value(index(0), index(row), at * index(width) + v)
                return found if str(found.ty.dtype) == self.factor else found.astype(self.factor)

            load = as_vector(self.scope, width, lambda v: store(self.terms, value(v), place + v))
            if whole:
                return load
            zero = tirx.const(0, self.factor)
            zeros = as_vector(self.scope, width, lambda v: store(self.terms, zero, place + v))
            return tirx.IfThenElse(simplify(at < index(-(-depth // width))), load, zeros)

        return self.scope.loop(many // width, vector, "q", UNROLL)

    def _scaled(self, n, panels: Panels) -> tirx.Stmt:
        """Add a sum of products of codes, times the scale of the group."""
        wide, simplify = index(WIDE), self.scope.analyzer.simplify
        i, j = (simplify(f(n, wide)) for f in (tirx.floordiv, tirx.floormod))
        total = self.few[n].astype(FLOAT) if self.factor != FLOAT else self.few[n]
        total = total if self.unit == 1 else total * tirx.const(1 / self.unit, FLOAT)
        if self.source.points is not None:
            off = tirx.const(self.codes.zero, FLOAT) - self.source.points[j].astype(FLOAT)
            total = total + self.added[i] * off
        return store(self.sums, self.sums[n] + self.source.scales[j].astype(FLOAT) * total, n)

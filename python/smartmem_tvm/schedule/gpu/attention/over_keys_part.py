# SPDX-License-Identifier: Apache-2.0
"""Attention over a part of the keys: the statements of the thread blocks of the first launch."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ....ir.half import FLOAT
from ...core.nest import UNROLL, allocate, block, index, store
from ..gemm.operand import Operand
from ..gemm.ptx import barrier
from ..gemm.simt import as_vector
from ..launch import launch, registers, shared, when
from .over_keys_operands import bare, operands
from .over_keys_sum import LOWEST, PartsOfKeys, number_of, zero


class PartOfKeys:
    """The statements of a thread block, which has rows that share a key head, and a part of the keys.

    Parameters
    ----------
    parts : PartsOfKeys
        Where it leaves its results.
    """

    def __init__(self, parts: PartsOfKeys):
        self.parts, self.attention, self.shape, self.tile = parts, parts.attention, parts.shape, parts.tile
        self.scope = parts.scope
        self.rows, self.keys, self.values = operands(parts.attention)
        self.blocks = self.shape.group // self.tile.rows  # thread blocks that share the rows of a key head

    def first(self) -> tirx.Stmt:
        """Return the first launch."""
        blocks = self.shape.heads * self.blocks * self.parts.count
        return launch(self.scope, blocks, self.tile.threads, self.part)

    def part(self, number, thread) -> tirx.Stmt:
        """Return the statements of a thread block: rows of one key head, and a part of the keys."""
        shape, tile, simplify = self.shape, self.tile, self.scope.analyzer.simplify
        head, part = (simplify(f(number, index(self.parts.count))) for f in (tirx.floordiv, tirx.floormod))
        self.head, first = (simplify(f(head, index(self.blocks))) for f in (tirx.floordiv, tirx.floormod))
        self.first_row, self.number, self.thread = first * index(tile.rows), part, thread
        self.begin = simplify(part * index(tile.keys))
        self.many = self.parts.keys()
        width = tile.rows * shape.depth
        self.queries = shared(width, FLOAT, "queries")
        self.dots = shared(tile.lanes * tile.rows * tile.keys, FLOAT, "dots")
        self.weights = shared(tile.rows * tile.keys, FLOAT, "weights")
        self.shares = shared(tile.rows * tile.sharing, FLOAT, "shares")
        self.sums = shared(tile.slices(shape) * tile.rows * shape.width, FLOAT, "sums")
        self.key_words = registers(tile.key_numbers(shape), self._type(self.keys), "key_words")
        self.value_words = registers(tile.value_numbers(shape), self._type(self.values), "value_words")
        self.dot = registers(tile.own_keys * tile.rows, FLOAT, "dot")
        self.score = registers(tile.scores_each, FLOAT, "score")
        self.most = registers(1, FLOAT, "most")
        self.total = registers(1, FLOAT, "total")
        self.result = registers(tile.rows * shape.value_run, FLOAT, "result")
        body = block(
            self._load_keys(),
            self._load_values(),
            self._load_rows(),
            barrier(),
            *self._multiply_keys(),
            barrier(),
            *self._scores(),
            barrier(),
            *self._weigh(),
            barrier(),
            *self._multiply_values(),
            barrier(),
            self._leave(),
        )
        on_chip = [self.queries, self.dots, self.weights, self.shares, self.sums]
        own = [self.key_words, self.value_words, self.dot, self.score, self.most, self.total, self.result]
        body = allocate([*on_chip, *own], body)
        # A loop of one turn or none: TVM puts barriers into loops, and refuses to put them under a condition.
        turns = tirx.min(index(1), tirx.max(index(0), self.many - self.begin))
        return body if self.parts.count == 1 else self.scope.loop(turns, lambda _: body, "turn", most=1)

    def _type(self, operand: Operand) -> str:
        return str(bare(operand.value(index(0), index(0), index(0))).ty.dtype)

    def _bare(self, operand: Operand, outer, k):
        return bare(operand.value(self._batch(index(0)), outer, k))

    def _batch(self, row):
        """Return the batch of a row of the thread block."""
        at = self.head * index(self.shape.group) + self.first_row + row
        return self.scope.analyzer.simplify(tirx.floordiv(at, index(self.shape.rows)))

    def _row(self, row):
        return self.scope.analyzer.simplify(tirx.floormod(self.first_row + row, index(self.shape.rows)))

    def _there(self, key):
        """Return a key that there is: behind the length nothing may be read, not even to be left out."""
        return tirx.min(self.begin + key, self.many - index(1))

    def _load_keys(self) -> tirx.Stmt:
        shape, tile, run = self.shape, self.tile, self.shape.key_run
        lane, key = self._lane()
        made = []
        for i in range(tile.own_keys):
            at = self._there(key + index(i * tile.keys_at_once))
            for u in range(tile.units(shape)):
                first = (index(u * tile.lanes) + lane) * index(run)
                to = (i * tile.units(shape) + u) * run
                made.append(self._vector(self.key_words, to, run, lambda v, f=first, at=at: self._key(at, f + v)))
        return block(*made)

    def _key(self, at, k):
        return self._bare(self.keys, at, k)

    def _lane(self) -> tuple:
        """Return (place along the depth, key) of a thread."""
        lanes = index(self.tile.lanes)
        return tuple(self.scope.analyzer.simplify(f(self.thread, lanes)) for f in (tirx.floormod, tirx.floordiv))

    def _column(self) -> tuple:
        """Return (first column, slice of the keys) of a thread, and None or a condition that it has some."""
        shape, across = self.shape, self.shape.width // self.shape.value_run
        simplify = self.scope.analyzer.simplify
        column, part = (simplify(f(self.thread, index(across))) for f in (tirx.floormod, tirx.floordiv))
        slices = self.tile.slices(shape)
        return (
            column * index(shape.value_run),
            part,
            (part < index(slices)) if slices * across < self.tile.threads else None,
        )

    def _load_values(self) -> tirx.Stmt:
        shape, tile, run = self.shape, self.tile, self.shape.value_run
        column, part, mine = self._column()
        made, slices = [], tile.slices(shape)
        for i in range(tile.own_values(shape)):
            at = self._there(part + index(i * slices))
            made.append(
                self._vector(self.value_words, i * run, run, lambda v, at=at: self._bare(self.values, column + v, at))
            )
        return when(mine, block(*made))

    def _vector(self, into, first: int, run: int, value: Callable) -> tirx.Stmt:
        return as_vector(self.scope, run, lambda v: store(into, value(v), index(first) + v))

    def _each(self, count: int, body: Callable) -> tirx.Stmt:
        """Return ``body(n)`` for each n below `count`, by all threads."""
        threads = self.tile.threads

        def one(c):
            n = self.scope.analyzer.simplify(c * index(threads) + self.thread)
            return when(None if count % threads == 0 else n < index(count), self.scope.simplify(body(n)))

        return self.scope.loop(-(-count // threads), one, "c", UNROLL)

    def _load_rows(self) -> tirx.Stmt:
        depth = index(self.shape.depth)

        def one(n):
            row, k = (self.scope.analyzer.simplify(f(n, depth)) for f in (tirx.floordiv, tirx.floormod))
            value = self.rows.value(self._batch(row), self._row(row), k)
            return store(self.queries, value.astype(FLOAT), n)

        return self._each(self.tile.rows * self.shape.depth, one)

    def _multiply_keys(self) -> list[tirx.Stmt]:
        shape, tile, run = self.shape, self.tile, self.shape.key_run
        lane, key = self._lane()
        clear = self.scope.loop(tile.own_keys * tile.rows, lambda i: store(self.dot, zero(), i), "i", UNROLL)
        adds = []
        for r in range(tile.rows):
            for u in range(tile.units(shape)):
                first = (index(u * tile.lanes) + lane) * index(run) + index(r * shape.depth)
                for i in range(tile.own_keys):
                    for v in range(run):
                        word = self.key_words[index((i * tile.units(shape) + u) * run + v)].astype(FLOAT)
                        to = index(i * tile.rows + r)
                        adds.append(store(self.dot, self.dot[to] + self.queries[first + index(v)] * word, to))
        leave = [
            store(
                self.dots,
                self.dot[index(i * tile.rows + r)],
                (lane * index(tile.rows) + index(r)) * index(tile.keys) + key + index(i * tile.keys_at_once),
            )
            for i in range(tile.own_keys)
            for r in range(tile.rows)
        ]
        return [clear, *adds, *leave]

    def _sharing(self) -> tuple:
        """Return (row, place among the threads that share it) of a thread, and a condition that it has a row."""
        tile, simplify = self.tile, self.scope.analyzer.simplify
        row, at = (simplify(f(self.thread, index(tile.sharing))) for f in (tirx.floordiv, tirx.floormod))
        return row, at, None if tile.rows * tile.sharing == tile.threads else row < index(tile.rows)

    def _own_scores(self, body: Callable) -> list[tirx.Stmt]:
        """Return ``body(number, key)`` for the keys whose scores a thread has."""
        tile, (_, at, _) = self.tile, self._sharing()
        made = []
        for i in range(tile.scores_each):
            key = at + index(i * tile.sharing)
            inside = None if (i + 1) * tile.sharing <= tile.keys else key < index(tile.keys)
            made.append(when(inside, body(i, key)))
        return made

    def _scores(self) -> list[tirx.Stmt]:
        tile = self.tile
        row, at, mine = self._sharing()

        def score(i: int, key) -> tirx.Stmt:
            total = zero()
            for lane in range(tile.lanes):
                total = total + self.dots[(index(lane * tile.rows) + row) * index(tile.keys) + key]
            value = self.attention.value_at(total, self._batch(row), self._row(row), self._there(key))
            seen = self.begin + key < self.many
            return store(self.score, tirx.Select(seen, value, number_of(float("-inf"))), i)

        def largest(i: int, key) -> tirx.Stmt:
            return store(self.most, tirx.max(self.most[index(0)], self.score[index(i)]), 0)

        body = block(
            store(self.most, number_of(LOWEST), 0),
            *self._own_scores(score),
            *self._own_scores(largest),
            store(self.shares, self.most[index(0)], row * index(tile.sharing) + at),
        )
        return [when(mine, body)]

    def _weigh(self) -> list[tirx.Stmt]:
        tile = self.tile
        row, at, mine = self._sharing()
        first = row * index(tile.sharing)

        def share(p) -> tirx.Stmt:
            return store(self.most, tirx.max(self.most[index(0)], self.shares[first + p]), 0)

        def weight(i: int, key) -> tirx.Stmt:
            seen = self.begin + key < self.many
            value = tirx.Select(seen, tirx.exp(self.score[index(i)] - self.most[index(0)]), zero())
            return block(
                store(self.score, value, i),
                store(self.weights, self.score[index(i)], row * index(tile.keys) + key),
                store(self.total, self.total[index(0)] + self.score[index(i)], 0),
            )

        body = block(
            store(self.most, number_of(LOWEST), 0),
            self.scope.loop(tile.sharing, share, "p", UNROLL),
            store(self.total, zero(), 0),
            *self._own_scores(weight),
        )
        ends = when(at.equal(index(0)), store(self.parts.ends, self.most[index(0)], self._end(row, 0)))
        share_total = store(self.shares, self.total[index(0)], row * index(tile.sharing) + at)
        return [when(mine, body), barrier(), when(mine, block(share_total, ends if self.parts.count > 1 else None))]

    def _end(self, row, which: int):
        """Return the place of a row's maximum (0) or sum (1) of this part."""
        return self.parts.end(self.head * index(self.shape.group) + self.first_row + row, self.number, which)

    def _multiply_values(self) -> list[tirx.Stmt]:
        shape, tile, run = self.shape, self.tile, self.shape.value_run
        column, part, mine = self._column()
        slices = tile.slices(shape)
        made = [self.scope.loop(tile.rows * run, lambda i: store(self.result, zero(), i), "i", UNROLL)]
        for i in range(tile.own_values(shape)):
            key = part + index(i * slices)
            inside = None if (i + 1) * slices <= tile.keys else key < index(tile.keys)
            adds = []
            for r in range(tile.rows):
                for v in range(run):
                    to, word = index(r * run + v), self.value_words[index(i * run + v)].astype(FLOAT)
                    adds.append(
                        store(self.result, self.result[to] + self.weights[index(r * tile.keys) + key] * word, to)
                    )
            made.append(when(inside, block(*adds)))
        for r in range(tile.rows):
            to = (part * index(tile.rows) + index(r)) * index(shape.width) + column
            made.append(
                as_vector(
                    self.scope, run, lambda v, r=r, to=to: store(self.sums, self.result[index(r * run) + v], to + v)
                )
            )
        return [when(mine, block(*made))]

    def _leave(self) -> tirx.Stmt:
        """Add the results of slices; write them and the sums of weights, or what they make if there is one part."""
        shape, tile = self.shape, self.tile
        width, slices = index(shape.width), tile.slices(shape)

        def total(row):
            first = row * index(tile.sharing)
            value = self.shares[first]
            for p in range(1, tile.sharing):
                value = value + self.shares[first + index(p)]
            return value

        def one(n):
            row, column = (self.scope.analyzer.simplify(f(n, width)) for f in (tirx.floordiv, tirx.floormod))
            value = self.sums[n]
            for s in range(1, slices):
                value = value + self.sums[index(s * tile.rows * shape.width) + n]
            if self.parts.count == 1:
                return self.parts.finish(value, total(row), self._batch(row), self._row(row), column)
            number = self.head * index(shape.group) + self.first_row + row
            part = store(self.parts.results, value, (number * index(self.parts.count) + self.number) * width + column)
            return block(part, when(column.equal(index(0)), store(self.parts.ends, total(row), self._end(row, 1))))

        return self._each(tile.rows * shape.width, one)

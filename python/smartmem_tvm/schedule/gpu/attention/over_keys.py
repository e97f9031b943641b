# SPDX-License-Identifier: Apache-2.0
"""Attention of few rows over a cache: thread blocks share its keys (flash-decoding).

    each thread block (heads of one key head, part of the keys), if there are keys before the length:
      rows = queries[...]                                        shared memory
      each thread: the numbers of its keys and of its values     registers, all on their way at once
      scores = f(rows . keys)                                    threads share the depth of a key
      most = max(scores);  weights = exp(scores - most)          of this part; none behind the length
      results = weights . values, total = sum(weights)           of this part
    each thread block (head, row): most = max of the parts, and the sum of results and totals times exp(most of the
      part - most), of the parts before the length

The length is data (`transform.fuse.bound_keys`), so that one recorded graph serves every token. With one part there is
no second launch. Rows of all query heads that share a key head are together, so that keys and values are read once.
Milakov and Gimelshein, Online normalizer calculation for softmax; Dao et al., Flash-Decoding for long contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import DataType, ir, tirx
from tvm.target import Target

from ....ir.half import FLOAT
from ....ir.index_map import variables
from ....ir.kernel import KEY_AXIS, Kernel
from ....ir.walk import loads
from ....target import Limits
from ...core.decisions import asking, decide, declined
from ...core.nest import UNROLL, Scope, allocate, block, current_index_type, fresh, index, store
from ..gemm.operand import Operand
from ..gemm.ptx import barrier
from ..gemm.simt import as_vector
from ..launch import GpuRule, launch, registers, shared, when
from .over_keys_tile import VECTOR_BYTES, KeyShape, KeyTile, able, key_tile
from .softmax import SoftmaxAttention, attention_of

_LOWEST = -3.4028234663852886e38  # of all floats the smallest, below all scores but -inf: by definition of IEEE 754
_ADDING = 256  # threads of a thread block that adds parts. Chosen: four per column of a head of 64 numbers


@dataclass(frozen=True)
class KeyParams:
    """What the rule reads of a target and a kernel: its limits, and whether its last input is a number of keys."""

    limits: Limits
    bounded: bool = True


@dataclass(frozen=True, eq=False)
class _KeyPlan:
    attention: SoftmaxAttention
    length: object
    shape: KeyShape
    tile: KeyTile


class GpuOverKeys(GpuRule):
    """The rule for attention of few rows over a cache, up to the last key that is seen."""

    def params_of(self, target: Target) -> KeyParams:
        """Return the limits of the target."""
        return KeyParams(Limits.of(target))

    def params_for(self, func: tirx.PrimFunc, target: Target) -> KeyParams:
        """Return the limits of the target, and whether the kernel has a length."""
        return replace(self.params_of(target), bounded=KEY_AXIS in (func.attrs or {}))

    def prepare(self, kernel: Kernel) -> Kernel:
        """Return the kernel unchanged: an attention is recognised by its unfolded stages."""
        return kernel

    def plan(self, kernel: Kernel, params: KeyParams) -> _KeyPlan | None:
        """Return how thread blocks share the keys; None if the kernel is no attention of few rows with a length."""
        if not params.bounded:
            return declined("it is no attention over a cache")
        attention = attention_of(kernel)
        if attention is None:
            return None
        shape = _shape(attention)
        if shape is None:
            return declined("its keys or values have no vectors in memory")
        tile = key_tile(shape, params.limits)
        if tile is None:
            return declined(f"{shape.group} rows share keys, or a row has {shape.depth} numbers: too many")
        facts = {name: int(getattr(shape, name)) for name in ("heads", "group", "keys", "depth", "width", "bytes")}
        tile = decide("gpu_over_keys", tile, lambda other: able(other, shape, params.limits), **facts)
        return _KeyPlan(attention, kernel.inputs[-1], shape, tile)

    def emit(self, plan: _KeyPlan) -> tirx.Stmt:
        """Return the loop nests of both launches, or of one."""
        return _OverKeys(plan).kernel()


def why_not_over_keys(func: tirx.PrimFunc, target: Target) -> str:
    """Return why the rule does not take a kernel of attention with a length; empty if it does."""
    with asking(func) as account:
        taken = GpuOverKeys().planned(func, target) is not None
    return "" if taken else account.reason or "no rule takes it"


def _shape(attention: SoftmaxAttention) -> KeyShape | None:
    chain = attention.chain
    _, keys, values = _operands(attention)
    together = next(
        many
        for many in range(chain.batch_count, 0, -1)
        if chain.batch_count % many == 0 and _same_for(keys, many) and _same_for(values, many)
    )
    read = [_stored(each) for each in (keys, values)]
    if None in read or read[0] != read[1]:
        return None
    size = read[0]
    most = VECTOR_BYTES // size
    return KeyShape(
        chain.batch_count // together,
        together * chain.row_count,
        chain.row_count,
        attention.keys,
        attention.depth_count,
        attention.width,
        size,
        keys.run(True, most),
        values.run(False, most),
    )


def _operands(attention: SoftmaxAttention) -> tuple[Operand, Operand, Operand]:
    """Return queries, keys and values in their own types, by rows, keys and columns."""
    chain = attention.chain
    first, second = chain.products[attention.scores], chain.products[attention.result]

    def operand(stage, expr, along: str, outer: int, depth: int) -> Operand:
        def value(b, at, k):
            return attention.at(stage, expr, batch=b, depth=k, **{along: at})

        return Operand(value, chain.batch_count, outer, depth)

    return (
        operand(attention.scores, first.left, "row", chain.row_count, attention.depth_count),
        operand(attention.scores, first.right, "column", attention.keys, attention.depth_count),
        operand(attention.result, second.right, "column", attention.width, attention.keys),
    )


def _same_for(operand: Operand, many: int) -> bool:
    """Whether an operand is the same for each `many` neighbouring batches."""
    scope = Scope()
    outer, inner, at, k = (fresh(name) for name in ("outer", "inner", "at", "k"))
    for var, extent in ((outer, operand.batch // many), (inner, many), (at, operand.outer), (k, operand.depth)):
        scope.analyzer.bind(var, ir.Range(index(0), index(extent)))
    value = scope.simplify(operand.value(outer * index(many) + inner, at, k))
    return many == 1 or not any(inner.same_as(var) for var in variables(value))


def _stored(operand: Operand) -> int | None:
    """Return the bytes of a number of a matrix that is only loaded, and cast; None for any other."""
    value = _bare(operand.value(index(0), index(0), index(0)))
    read = loads(value)
    if len(read) != 1 or not value.same_as(read[0]):
        return None
    return DataType(str(value.ty.dtype)).itemsize


def _bare(value):
    """Return what is in memory of a number that may be cast."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


class _OverKeys:
    """The statements of both launches."""

    def __init__(self, plan: _KeyPlan):
        self.attention, self.length, self.shape, self.tile = plan.attention, plan.length, plan.shape, plan.tile
        self.scope = Scope()
        self.rows, self.keys, self.values = _operands(plan.attention)
        shape, tile = plan.shape, plan.tile
        self.parts = tile.parts(shape)
        self.partial = _memory(shape.heads * shape.group * self.parts * shape.width, "parts")
        self.ends = _memory(shape.heads * shape.group * self.parts * 2, "ends")
        self.blocks = shape.group // tile.rows  # thread blocks that share the rows of a key head

    def kernel(self) -> tirx.Stmt:
        """Return the launches."""
        shape, tile = self.shape, self.tile
        first = launch(self.scope, shape.heads * self.blocks * self.parts, tile.threads, self._part)
        if self.parts == 1:
            return first
        second = launch(self.scope, shape.heads * shape.group, _adders(shape), self._add)
        return allocate([self.partial, self.ends], block(first, second))

    # -- a part of the keys --------------------------------------------------------------------------------------------

    def _part(self, number, thread) -> tirx.Stmt:
        shape, tile, simplify = self.shape, self.tile, self.scope.analyzer.simplify
        head, part = (simplify(f(number, index(self.parts))) for f in (tirx.floordiv, tirx.floormod))
        self.head, first = (simplify(f(head, index(self.blocks))) for f in (tirx.floordiv, tirx.floormod))
        self.first, self.part, self.thread = first * index(tile.rows), part, thread
        self.begin = simplify(part * index(tile.keys))
        self.many = self.length[index(0)].astype(current_index_type())
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
        return body if self.parts == 1 else self.scope.loop(turns, lambda _: body, "turn", most=1)

    def _type(self, operand: Operand) -> str:
        return str(_bare(operand.value(index(0), index(0), index(0))).ty.dtype)

    def _bare(self, operand: Operand, outer, k):
        return _bare(operand.value(self._batch(index(0)), outer, k))

    def _batch(self, row):
        """Return the batch of a row of the thread block."""
        at = self.head * index(self.shape.group) + self.first + row
        return self.scope.analyzer.simplify(tirx.floordiv(at, index(self.shape.rows)))

    def _row(self, row):
        return self.scope.analyzer.simplify(tirx.floormod(self.first + row, index(self.shape.rows)))

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
        clear = self.scope.loop(tile.own_keys * tile.rows, lambda i: store(self.dot, _zero(), i), "i", UNROLL)
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
            total = _zero()
            for lane in range(tile.lanes):
                total = total + self.dots[(index(lane * tile.rows) + row) * index(tile.keys) + key]
            value = self.attention.value_at(total, self._batch(row), self._row(row), self._there(key))
            seen = self.begin + key < self.many
            return store(self.score, tirx.Select(seen, value, _number(float("-inf"))), i)

        def largest(i: int, key) -> tirx.Stmt:
            return store(self.most, tirx.max(self.most[index(0)], self.score[index(i)]), 0)

        body = block(
            store(self.most, _number(_LOWEST), 0),
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
            value = tirx.Select(seen, tirx.exp(self.score[index(i)] - self.most[index(0)]), _zero())
            return block(
                store(self.score, value, i),
                store(self.weights, self.score[index(i)], row * index(tile.keys) + key),
                store(self.total, self.total[index(0)] + self.score[index(i)], 0),
            )

        body = block(
            store(self.most, _number(_LOWEST), 0),
            self.scope.loop(tile.sharing, share, "p", UNROLL),
            store(self.total, _zero(), 0),
            *self._own_scores(weight),
        )
        ends = when(at.equal(index(0)), store(self.ends, self.most[index(0)], self._end(row, 0)))
        share_total = store(self.shares, self.total[index(0)], row * index(tile.sharing) + at)
        return [when(mine, body), barrier(), when(mine, block(share_total, ends if self.parts > 1 else None))]

    def _end(self, row, which: int):
        """Return the place of a row's maximum (0) or sum (1) of this part."""
        number = self.head * index(self.shape.group) + self.first + row
        return (number * index(self.parts) + self.part) * index(2) + index(which)

    def _multiply_values(self) -> list[tirx.Stmt]:
        shape, tile, run = self.shape, self.tile, self.shape.value_run
        column, part, mine = self._column()
        slices = tile.slices(shape)
        made = [self.scope.loop(tile.rows * run, lambda i: store(self.result, _zero(), i), "i", UNROLL)]
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
            if self.parts == 1:
                return self._finish(value, total(row), self._batch(row), self._row(row), column)
            number = self.head * index(shape.group) + self.first + row
            part = store(self.partial, value, (number * index(self.parts) + self.part) * width + column)
            return block(part, when(column.equal(index(0)), store(self.ends, total(row), self._end(row, 1))))

        return self._each(tile.rows * shape.width, one)

    def _finish(self, value, total, batch, row, column) -> tirx.Stmt:
        """Divide, finish and store a result; where the model replaces NaN it does so by zero, as `BoundKeys` proved."""
        if self.attention.lonely is not None:
            total = tirx.Select(total > _zero(), total, _number(1.0))
        if self.attention.normalised:
            value = value / total
        return self.attention.leave(value, total, batch, row, column)

    # -- the sum of all parts ------------------------------------------------------------------------------------------

    def _add(self, number, thread) -> tirx.Stmt:
        shape, parts, simplify = self.shape, self.parts, self.scope.analyzer.simplify
        slices, width = _adders(shape) // shape.width, index(shape.width)
        column, part = (simplify(f(thread, width)) for f in (tirx.floormod, tirx.floordiv))
        many = self.length[index(0)].astype(current_index_type())
        used = tirx.floordiv(many + index(self.tile.keys - 1), index(self.tile.keys))
        most, sums = registers(1, FLOAT, "most"), registers(3, FLOAT, "sums")
        kept = shared(slices * (shape.width + 1), FLOAT, "kept")
        at = number * index(parts)

        def end(p, which: int):
            return self.ends[(at + p) * index(2) + index(which)]

        def larger(p) -> tirx.Stmt:
            value = tirx.Select(p < used, end(p, 0), _number(_LOWEST))
            return store(most, tirx.max(most[index(0)], value), 0)

        def more(c) -> tirx.Stmt:
            p = simplify(c * index(slices) + part)
            factor = tirx.exp(end(p, 0) - most[index(0)])
            body = block(
                store(sums, factor, 2),
                store(sums, sums[index(0)] + sums[index(2)] * self.partial[(at + p) * width + column], 0),
                store(sums, sums[index(1)] + sums[index(2)] * end(p, 1), 1),
            )
            return tirx.IfThenElse(p < used, body, None)

        def total(which: int):
            place = column if which == 0 else width
            value = kept[place]
            for s in range(1, slices):
                value = value + kept[index(s * (shape.width + 1)) + place]
            return value

        batch, row = (simplify(f(number, index(shape.rows))) for f in (tirx.floordiv, tirx.floormod))
        turns = -(-parts // slices)
        body = block(
            store(most, _number(_LOWEST), 0),
            self.scope.loop(parts, larger, "p", UNROLL if parts <= 64 else 0),
            store(sums, _zero(), 0),
            store(sums, _zero(), 1),
            self.scope.loop(turns, more, "c", UNROLL if turns <= 16 else 0),
            store(kept, sums[index(0)], part * index(shape.width + 1) + column),
            when(column.equal(index(0)), store(kept, sums[index(1)], part * index(shape.width + 1) + width)),
            barrier(),
            when(part.equal(index(0)), self.scope.simplify(self._finish(total(0), total(1), batch, row, column))),
        )
        return allocate([most, sums, kept], body)


def _adders(shape: KeyShape) -> int:
    """Return the threads of a thread block that adds parts: some of each column."""
    return max(1, _ADDING // shape.width) * shape.width


def _memory(count: int, name: str):
    return tirx.decl_buffer([index(count)], FLOAT, name, layout=None)


def _number(value: float):
    return tirx.const(value, FLOAT)


def _zero():
    return _number(0.0)

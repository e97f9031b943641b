# SPDX-License-Identifier: Apache-2.0
"""Attention in halves on a GPU by its matrix instructions: rows of any length, softmax while keys go by.

    each group of warps (batch, block of rows); a warp has 16 or 32 of the rows:
      load fragments of its rows                              shared memory -> registers, once
      most = a number below all scores, sum = 0, results = 0
      for each block of keys:
        wait for keys and values; barrier; start to copy those of a later block
        scores = rows @ keys                                  fragments, float32
        scores = f(scores), of rows and keys by their indices
        new = max(most, scores of the row);  shrink = exp(most - new)
        weights = exp(scores - new);  sum = sum * shrink + weights;  results *= shrink
        results += half(weights) @ values                     the fragments of scores are those of a left operand
      out[g(i, c)] = finish(results, sum)

So neither scores nor weights ever leave registers (Dao et al., FlashAttention, Algorithm 1; Milakov and Gimelshein,
Online normalizer calculation for softmax, Algorithm 3). Folded layout operators are in the addresses.
"""

from __future__ import annotations

import math
from dataclasses import fields

from tvm import tirx

from ....analysis.row_chain import RowChain, row_chain_of
from ....ir.index_map import variables
from ....ir.kernel import Kernel, Opaque
from ....ir.texels import is_texture
from ....ir.walk import loads
from ....target import is_cuda
from ...core.decisions import decide
from ...core.nest import UNROLL, Scope, allocate, block, fresh, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import GpuRule, launch, registers, when
from ..matrix import instructions as ptx
from ..matrix.staged_operand import StagedLanes, StagedOperand, goes_by_itself
from ..occupancy import WARP
from ..vectors import places_of, vector_run
from .matrix_tile import WIDEST, AttentionParams, AttentionShape, AttentionTile, best_attention_tile, fits
from .softmax import SoftmaxAttention

_LOWEST = -1e37  # below all scores but those that mean none: times a scale and what makes base 2 of base e, finite
_LOG2_E = math.log2(math.e)
_PAIR = 2  # neighbouring columns of a lane
_TOGETHER = 4  # times 8 keys whose scores are finished before the next ones begin


class GpuMatrixAttention(GpuRule):
    """The rule for attention of halves on GPUs with matrix instructions.

    Parameters
    ----------
    params : AttentionParams, optional
        By default those of the target.
    tile : AttentionTile, optional
        By default the one that `best_attention_tile` chooses.
    """

    def __init__(self, params: AttentionParams | None = None, tile: AttentionTile | None = None):
        super().__init__(params)
        self.tile = tile

    def runs_on(self, target) -> bool:
        """Whether the target is an NVIDIA GPU of compute capability 8.0 or more."""
        return is_cuda(target) and AttentionParams.of(target) is not None

    def params_of(self, target) -> AttentionParams:
        """What is known of the target."""
        return AttentionParams.of(target)

    def prepare(self, kernel: Kernel) -> Kernel:
        """Every stage as it is: this is how an attention is recognised."""
        return kernel

    def lower(self, kernel: Kernel, params: AttentionParams) -> tirx.Stmt | None:
        """The nest of a kernel, or None if it is no attention of halves, or one that other rules are better at."""
        if len(kernel.outputs) != 1 or any(map(is_texture, (*kernel.inputs, *kernel.outputs))):
            return None
        try:
            attention = SoftmaxAttention(row_chain_of(kernel))
        except Opaque:
            return None
        if not attention.halves or _objection(attention, params):
            return None
        shape = _shape(attention)
        tile = self.tile or best_attention_tile(shape, params)
        facts = {each.name: int(getattr(shape, each.name)) for each in fields(shape)}
        decided = decide("gpu_matrix_attention", tile, lambda other: fits(other, shape, params), **facts)
        return _Emitter(attention, shape, decided).kernel()


def takes(chain: RowChain, params: AttentionParams) -> bool:
    """Whether the rule takes a chain of rows once its numbers are halves, however long its rows are."""
    try:
        return not _objection(SoftmaxAttention(chain), params)
    except Opaque:
        return False


def _shape(attention: SoftmaxAttention) -> AttentionShape:
    chain = attention.chain
    _, keys, values = attention.operands()
    held = sum(not goes_by_itself(each) for each in (keys, values))
    read = [load for load in loads(attention.value) if attention.key in variables(load)]
    sizes = chain.batch_count, chain.row_count, attention.keys, attention.depth_count, attention.width
    return AttentionShape(*sizes, held, len(read))


def _objection(attention: SoftmaxAttention, params: AttentionParams) -> str:
    rows = attention.chain.row_count
    if rows < params.least_rows:
        return f"{rows} rows share their keys, too few for matrix instructions"
    if max(attention.depth_count, attention.width) > WIDEST or best_attention_tile(_shape(attention), params) is None:
        return f"rows of {attention.depth_count} terms and {attention.width} results do not fit in registers"
    return ""


class _Emitter:
    def __init__(self, attention: SoftmaxAttention, shape: AttentionShape, tile: AttentionTile):
        self.attention, self.shape, self.tile, self.scope = attention, shape, tile, Scope()
        rows, keys, values = attention.operands()
        self.blocks, self.many = shape.blocks(tile), tile.threads
        self.rows = StagedOperand("rows", rows, tile.rows, shape.deep, self.many, 1)
        self.keys = StagedLanes("keys", keys, tile.keys, shape.deep, self.many, tile.stages)
        self.values = StagedOperand("values", values, shape.wide, tile.keys, self.many, tile.stages)
        self.memory = self._shared()
        self.dtype = self.rows.dtype
        # A scale goes into the exponent: the largest score is the largest product.
        self.e2 = tirx.const((attention.scale or 1.0) * _LOG2_E, "float32")
        m, floats = tile.fragments, "float32"
        self.down = registers(m * shape.deep // ptx.TERMS * ptx.LEFT, "uint32", "down")
        self.across = registers(max(tile.keys, shape.wide) // ptx.COLUMNS * ptx.RIGHT, "uint32", "across")
        self.scores = registers(m * tile.keys // ptx.COLUMNS * ptx.SUMS, floats, "scores")
        self.weights = registers(m * tile.keys // ptx.TERMS * ptx.LEFT, "uint32", "weights")
        self.results = registers(m * shape.wide // ptx.COLUMNS * ptx.SUMS, floats, "results")
        self.most, self.sum = registers(2 * m, floats, "most"), registers(2 * m, floats, "sum")
        self.new, self.shift = registers(2 * m, floats, "new"), registers(2 * m, floats, "shift")
        self.shrink = registers(2 * m, floats, "shrink")

    def _shared(self):
        tile, start = self.tile, 0
        for operand, stages in ((self.rows, 1), (self.keys, tile.stages), (self.values, tile.stages)):
            operand.start_at = start
            start += stages * operand.elements
        memory = tirx.decl_buffer([index(start)], self.rows.dtype, "stages", scope="shared.dyn", layout=None)
        self.rows.buffer = self.keys.buffer = self.values.buffer = memory
        return memory

    def kernel(self) -> tirx.Stmt:
        """The whole nest."""
        down = -(-self.shape.rows // self.tile.rows)

        def thread(group, number):
            simplify = self.scope.analyzer.simplify
            batch, tile = tirx.floordiv(group, index(down)), tirx.floormod(group, index(down))
            return self._thread(simplify(batch), simplify(tile), number)

        return launch(self.scope, self.shape.batch * down, self.many, thread)

    def _thread(self, batch, tile, number) -> tirx.Stmt:
        simplify, own = self.scope.analyzer.simplify, self.tile
        self.batch = batch
        self.lane = simplify(tirx.floormod(number, index(WARP)))
        self.first = simplify(tirx.floordiv(number, index(WARP)) * index(own.warp_rows))  # row of the warp
        self.at = simplify(tile * index(own.rows) + self.first + tirx.floordiv(self.lane, index(4)))
        self.column = simplify(tirx.floormod(self.lane, index(4)) * index(_PAIR))
        ahead = max(1, own.stages - 1)
        begin = [self._bring_rows(tile, number), *(self._begin(step, number) for step in range(ahead))]
        load = [ptx.wait(ahead), ptx.barrier(), *self._row_fragments(), *self._start_values()]
        loop = self.scope.loop(self.blocks, lambda step: self._block(step, number, ahead), "step")
        body = block(ptx.whole(self.memory), *begin, *load, loop, *self._finish())
        return allocate(self._buffers(), body)

    def _buffers(self) -> list:
        held = [each.held for each in (self.rows, self.keys, self.values) if not each.copied]
        numbers = [self.down, self.across, self.scores, self.weights, self.results, self.most, self.sum, self.new]
        return [self.memory, *numbers, self.shift, self.shrink, *held]

    # -- into shared memory --------------------------------------------------------------------------------------------

    def _bring_rows(self, tile, number) -> tirx.Stmt:
        start = self.rows.start(self.scope, number, self.batch, tile, index(0), self.shape.deep == self.shape.depth)
        return block(start, self.rows.put(self.scope, number, index(0)), ptx.commit())

    def _start(self, step, number) -> tirx.Stmt:
        whole = self.shape.keys % self.tile.keys == 0
        return block(
            self.keys.start(self.scope, number, self.batch, index(0), step, self.shape.deep == self.shape.depth),
            self.values.start(self.scope, number, self.batch, index(0), step, whole),
        )

    def _put(self, step, number) -> list:
        both = [each.put(self.scope, number, step) for each in (self.keys, self.values)]
        return [each for each in both if each is not None]

    def _begin(self, step: int, number) -> tirx.Stmt:
        if step >= self.blocks:
            return ptx.commit()
        return block(self._start(index(step), number), *self._put(index(step), number), ptx.commit())

    # -- a block of keys -----------------------------------------------------------------------------------------------

    def _block(self, step, number, ahead: int) -> tirx.Stmt:
        later, more = step + index(ahead), self.blocks > ahead
        exists = later < index(self.blocks)
        begin = when(exists, self._start(later, number)) if more else None
        stored = self._put(later, number) if more else []
        put = when(exists, block(*stored)) if stored else None
        return block(
            ptx.wait(ahead - 1),
            ptx.barrier(),
            begin,
            ptx.commit(),
            *self._score(step),
            *self._value(step),
            *self._renew(),
            *self._add(step),
            put,
        )

    def _row_fragments(self) -> list[tirx.Stmt]:
        count, loads_ = self.tile.fragments, []
        for k in range(self.shape.deep // ptx.TERMS):
            first = k * count * ptx.LEFT
            at = (self.down, first, self.first, self.lane, index(k * ptx.TERMS), index(0), count, True)
            loads_ += self.rows.fragments(*at)
        return loads_

    def _start_values(self) -> list[tirx.Stmt]:
        def fill(buffer, value: float):
            count, number = int(buffer.shape[0]), tirx.const(value, "float32")
            return self.scope.loop(count, lambda i: store(buffer, number, i), "i", UNROLL)

        return [fill(self.most, _LOWEST), fill(self.sum, 0.0), fill(self.results, 0.0)]

    def _score(self, step) -> list[tirx.Stmt]:
        """Scores of a block, as they come out of the instructions."""
        count, columns = self.tile.fragments, self.tile.keys // ptx.COLUMNS
        zero = tirx.const(0, "float32")
        made = [self.scope.loop(count * columns * ptx.SUMS, lambda i: store(self.scores, zero, i), "i", UNROLL)]
        for first in range(0, columns, _TOGETHER):
            some = min(_TOGETHER, columns - first)
            for k in range(self.shape.deep // ptx.TERMS):
                lanes, terms = index(first * ptx.COLUMNS), index(k * ptx.TERMS)
                made += self.keys.fragments(self.across, 0, lanes, self.lane, terms, step, some // 2, False)
                for j in range(some):
                    for i in range(count):
                        left = _some(self.down, k * count + i, ptx.LEFT)
                        sums = _some(self.scores, i * columns + first + j, ptx.SUMS)
                        made.append(ptx.multiply(sums, left, _some(self.across, j, ptx.RIGHT), self.dtype))
        return made

    def _value(self, step) -> list[tirx.Stmt]:
        """What softmax is taken of, in the place of scores; minus infinity where there is no key."""
        whole = self.shape.keys % self.tile.keys == 0
        if self.attention.scale is not None and whole:
            return []
        made, none = [], tirx.const(-math.inf, "float32")
        for i, half, j, n in self._places():
            at = self._place(i, half, j, n)
            key = step * index(self.tile.keys) + index(j * ptx.COLUMNS + n) + self.column
            inside = key < index(self.shape.keys)
            if not whole:
                key = tirx.min(key, index(self.shape.keys - 1))
            value = self.scores[index(at)]
            if self.attention.scale is None:
                value = self.attention.value_at(value, self.batch, self._row(i, half), key)
            value = value if whole else tirx.Select(inside, value, none)
            made.append(self.scope.simplify(store(self.scores, value, at)))
        return made

    def _renew(self) -> list[tirx.Stmt]:
        """The largest score of each row so far; sums and results so far are made to fit."""
        columns, e2, made = self.tile.keys // ptx.COLUMNS, self.e2, []
        for i in range(self.tile.fragments):
            for half in range(2):
                row = index(2 * i + half)
                scores = [self.scores[index(self._place(i, half, j, n))] for j in range(columns) for n in range(_PAIR)]
                most = self.new[row]
                made.append(store(self.new, _tree(scores, tirx.max), row))
                made.append(store(self.new, tirx.max(self.most[row], ptx.largest(most)), row))
                made.append(store(self.shrink, tirx.exp2((self.most[row] - most) * e2), row))
                made += [store(self.most, most, row), store(self.shift, most * e2, row)]
                made.append(store(self.sum, self.sum[row] * self.shrink[row], row))
        for i in range(self.tile.fragments):
            for j in range(self.shape.wide // ptx.COLUMNS):
                for n in range(ptx.SUMS):
                    at = index((i * (self.shape.wide // ptx.COLUMNS) + j) * ptx.SUMS + n)
                    made.append(store(self.results, self.results[at] * self.shrink[index(2 * i + n // 2)], at))
        return made

    def _weigh(self, i: int, k: int, step) -> list[tirx.Stmt]:
        """Weights of 16 rows and the 16 keys from ``16 k`` on, in the place of their scores, and as halves."""
        e2, made = self.e2, []
        for half in range(2):
            row, places = index(2 * i + half), []
            for j in (2 * k, 2 * k + 1):
                for n in range(_PAIR):
                    at = index(self._place(i, half, j, n))
                    places.append((at, j, n))
                    made.append(store(self.scores, tirx.exp2(self.scores[at] * e2 - self.shift[row]), at))
            added = _tree([self.scores[at] for at, _, _ in places], lambda a, b: a + b)
            made.append(store(self.sum, self.sum[row] + added, row))
            if self.attention.lonely is not None:
                made += [self._lonely(i, half, step, *place) for place in places]
        for word in range(ptx.LEFT):
            half, j = word % 2, 2 * k + word // 2
            pair = [self.scores[index(self._place(i, half, j, n))] for n in range(_PAIR)]
            to = self.weights[index((i * (self.tile.keys // ptx.TERMS) + k) * ptx.LEFT + word)]
            made.append(ptx.pack(to, *pair, self.dtype))
        return made

    def _lonely(self, i: int, half: int, step, at, j: int, n: int) -> tirx.Stmt:
        """In rows without any key so far every key has the same weight, which goes into no sum."""
        weight = self.attention.lonely_at(self.batch, self._row(i, half))
        key = step * index(self.tile.keys) + index(j * ptx.COLUMNS + n) + self.column
        alone = self._is_lonely(index(2 * i + half))
        if self.shape.keys % self.tile.keys:
            alone = tirx.And(alone, key < index(self.shape.keys))
        return self.scope.simplify(store(self.scores, tirx.Select(alone, weight, self.scores[at]), at))

    def _is_lonely(self, row):
        return self.most[row] <= tirx.const(_LOWEST, "float32")

    def _add(self, step) -> list[tirx.Stmt]:
        """Weights times values: exponentials of some keys are computed while others are multiplied."""
        terms, columns, made = self.tile.keys // ptx.TERMS, self.shape.wide // ptx.COLUMNS, []
        for k in range(terms):
            for i in range(self.tile.fragments):
                made += self._weigh(i, k, step)
            at = (self.across, 0, index(0), self.lane, index(k * ptx.TERMS), step, columns // 2, False)
            made += self.values.fragments(*at)
            for j in range(columns):
                for i in range(self.tile.fragments):
                    left = _some(self.weights, i * terms + k, ptx.LEFT)
                    sums = _some(self.results, i * columns + j, ptx.SUMS)
                    made.append(ptx.multiply(sums, left, _some(self.across, j, ptx.RIGHT), self.dtype))
        return made

    # -- places --------------------------------------------------------------------------------------------------------

    def _places(self):
        """(fragment of rows, which of its two rows, fragment of keys, which of its two columns) of each score."""
        counts = self.tile.fragments, 2, self.tile.keys // ptx.COLUMNS, _PAIR
        return [(i, h, j, n) for i in range(counts[0]) for h in range(2) for j in range(counts[2]) for n in range(2)]

    def _place(self, i: int, half: int, j: int, n: int) -> int:
        return (i * (self.tile.keys // ptx.COLUMNS) + j) * ptx.SUMS + half * 2 + n

    def _row(self, i: int, half: int, inside: bool = True):
        """Number of a row; the last one where there are no more."""
        row = self.scope.analyzer.simplify(self.at + index(i * ptx.ROWS + half * 8))
        some = self.shape.rows % self.tile.rows != 0 and inside
        return tirx.min(row, index(self.shape.rows - 1)) if some else row

    # -- results -------------------------------------------------------------------------------------------------------

    def _finish(self) -> list[tirx.Stmt]:
        made = []
        for row in range(2 * self.tile.fragments):
            total = ptx.added(self.sum[index(row)])
            if self.attention.lonely is not None:
                total = tirx.Select(self._is_lonely(index(row)), tirx.const(1, "float32"), total)
            made.append(store(self.sum, total, row))
            if self.attention.normalised:
                made.append(store(self.shift, tirx.const(1, "float32") / self.sum[index(row)], row))
        run = self._run
        for i in range(self.tile.fragments):
            for half in range(2):
                stores = [self._leave(i, half, j, run) for j in range(self.shape.wide // ptx.COLUMNS)]
                row = self._row(i, half, False)
                exists = None if self.shape.rows % self.tile.rows == 0 else row < index(self.shape.rows)
                made.append(when(exists, block(*stores)))
        return made

    def _leave(self, i: int, half: int, j: int, run: int) -> tirx.Stmt:
        row, first = self._row(i, half, False), self.column + index(j * ptx.COLUMNS)
        at, number = (i * (self.shape.wide // ptx.COLUMNS) + j) * ptx.SUMS + half * 2, index(2 * i + half)

        def result(v):
            value = self.results[index(at) + v]
            if self.attention.normalised:
                value = value * self.shift[number]
            left = self.attention.leave(value, self.sum[number], self.batch, row, first + v)
            return self.scope.simplify(left)

        if run == _PAIR:
            stored = self.scope.loop(_PAIR, result, "v", VECTORIZED)
            return stored if self.shape.wide == self.shape.width else when(first < index(self.shape.width), stored)
        stores = []
        for n in range(_PAIR):
            exists = None if self.shape.wide == self.shape.width else first + index(n) < index(self.shape.width)
            stores.append(when(exists, result(index(n))))
        return block(*stores)

    @property
    def _run(self) -> int:
        """Neighbouring columns that are finished and stored as one vector."""
        b, i, chain = fresh("b"), fresh("i"), self.attention.chain
        unknown = [tirx.Var(name, "float32") for name in ("result", "total")]

        def access(j):
            stored = self.attention.leave(*unknown, b, i, j)
            read = places_of(stored.value)
            return None if read is None else [(stored.buffer, tuple(stored.indices)), *read]

        return vector_run(access, self.shape.width, {b: chain.batch_count, i: chain.row_count}, _PAIR)


def _some(buffer, number: int, count: int) -> list:
    return [buffer[index(number * count + n)] for n in range(count)]


def _tree(values: list, combine):
    """Values combined in pairs, and these in pairs: few of them wait for each other."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[len(pairs) * 2 :]]
    return values[0]

# SPDX-License-Identifier: Apache-2.0
"""A thread of an attention on tensor cores (`mma.sync`): rows, blocks of keys, results (see `flash_attention`)."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx

from ...core.nest import UNROLL, Scope, allocate, block, fresh, index, store
from ...core.nest import VECTOR as VECTORIZED
from ..gemm import ptx
from ..gemm.mma import WarpProducts
from ..gemm.staged_operand import StagedOperand, StagedOuter
from ..launch import launch, registers, when
from ..machine import WARP
from ..vectors import places_of, vector_run
from .flash_tile import TERMS, AttentionShape, AttentionTile
from .softmax import SoftmaxAttention

_LOWEST = -1e37  # chosen: a number below every score but masked ones, still finite times a scale and log2(e)
_LOG2_E = math.log2(math.e)
_PAIR = 2  # neighbouring columns of a lane, by definition (PTX ISA)


class FlashThread:
    """The statements of one thread, and the kernel around them."""

    def __init__(self, attention: SoftmaxAttention, shape: AttentionShape, tile: AttentionTile):
        self.attention, self.shape, self.tile, self.scope = attention, shape, tile, Scope()
        rows, keys, values = attention.operands()
        self.blocks, self.many = shape.blocks(tile), tile.threads
        self.element = element = attention.element
        self.rows = StagedOperand("rows", rows, element, tile.rows, shape.deep, self.many, 1)
        self.keys = StagedOuter("keys", keys, element, tile.keys, shape.deep, self.many, tile.stages)
        self.values = StagedOperand("values", values, element, shape.wide, tile.keys, self.many, tile.stages)
        self.memory = self._shared()
        # The scale goes into the exponent: it is positive, so the largest score is the largest product.
        self.e2 = tirx.const((attention.scale or 1.0) * _LOG2_E, "float32")
        m, floats = tile.fragments, "float32"
        self.left_fragments = registers(m * shape.deep // TERMS * ptx.LEFT, "uint32", "down")
        self.right_fragments = registers(max(tile.keys, shape.wide) // ptx.COLUMNS * ptx.RIGHT, "uint32", "across")
        self.scores = registers(m * tile.keys // ptx.COLUMNS * ptx.SUMS, floats, "scores")
        self.weights = registers(m * tile.keys // TERMS * ptx.LEFT, "uint32", "weights")
        self.results = registers(m * shape.wide // ptx.COLUMNS * ptx.SUMS, floats, "results")
        self.most, self.sum = registers(2 * m, floats, "most"), registers(2 * m, floats, "sum")
        self.new, self.shift = registers(2 * m, floats, "new"), registers(2 * m, floats, "shift")
        self.shrink = registers(2 * m, floats, "shrink")

    def _shared(self):
        # The swizzle of vectors depends on their addresses, so each operand begins at a multiple of eight of its
        # blocks: operands with wider blocks, whose sizes are multiples of that, come first.
        start = 0
        for operand in sorted((self.rows, self.keys, self.values), key=lambda each: -each.block):
            operand.start_at = start
            start += operand.stages * operand.elements
        name, size = f"stages_{self.element.name}", [index(start)]
        memory = tirx.decl_buffer(size, self.element.dtype, name, scope="shared.dyn", layout=None)
        self.rows.buffer = self.keys.buffer = self.values.buffer = memory
        return memory

    def kernel(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        down = -(-self.shape.rows // self.tile.rows)

        def thread(number_of_block, number):
            simplify = self.scope.analyzer.simplify
            batch, tile = tirx.floordiv(number_of_block, index(down)), tirx.floormod(number_of_block, index(down))
            return self._thread(simplify(batch), simplify(tile), number)

        return launch(self.scope, self.shape.batch * down, self.many, thread)

    def _thread(self, batch, tile, number) -> tirx.Stmt:
        simplify, own = self.scope.analyzer.simplify, self.tile
        self.batch = batch
        self.lane = simplify(tirx.floormod(number, index(WARP)))
        self.first = simplify(tirx.floordiv(number, index(WARP)) * index(own.warp_rows))  # row of the warp
        self.at = simplify(tile * index(own.rows) + self.first + tirx.floordiv(self.lane, index(4)))
        self.column = simplify(tirx.floormod(self.lane, index(4)) * index(_PAIR))
        ahead = self.ahead
        begin = [self._bring_rows(tile, number), *(self._begin(step, number) for step in range(ahead))]
        load = [ptx.wait(ahead), ptx.barrier(), *self._row_fragments(), *self._start_values()]
        body = block(ptx.whole(self.memory), *begin, *load, *self._through_keys(number), *self._finish())
        return allocate(self._buffers(), body)

    @property
    def ahead(self) -> int:
        """Blocks of keys that are prefetched while one is worked on."""
        return max(1, self.tile.stages - 1)

    def _through_keys(self, number) -> list[tirx.Stmt]:
        return [self.scope.loop(self.blocks, lambda step: self._block(step, number), "step")]

    def _buffers(self) -> list:
        held = [each.held for each in (self.rows, self.keys, self.values) if not each.copied]
        fragments = self.left_fragments, self.right_fragments
        numbers = [*fragments, self.scores, self.weights, self.results, self.most, self.sum, self.new]
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

    def _block(self, step, number) -> tirx.Stmt:
        arrive, put = self._arrive(step, number)
        return block(*arrive, *self._score(step), *self._value(step), *self._weigh(step), *self._add(step), put)

    def _arrive(self, step, number) -> tuple[list[tirx.Stmt], tirx.Stmt | None]:
        """Return the statements that wait for a block and prefetch a later one, and the store of held elements."""
        later, more = step + index(self.ahead), self.blocks > self.ahead
        exists = later < index(self.blocks)
        begin = when(exists, self._start(later, number)) if more else None
        stored = self._put(later, number) if more else []
        put = when(exists, block(*stored)) if stored else None
        return [ptx.wait(self.ahead - 1), ptx.barrier(), begin, ptx.commit()], put

    def _row_fragments(self) -> list[tirx.Stmt]:
        count, loads_ = self.tile.fragments, []
        for k in range(self.shape.deep // TERMS):
            first = k * count * ptx.LEFT
            at = (self.left_fragments, first, self.first, self.lane, index(k * TERMS), index(0), count, True)
            loads_ += self.rows.fragments(*at)
        return loads_

    def _start_values(self) -> list[tirx.Stmt]:
        def fill(buffer, value: float):
            count, number = int(buffer.shape[0]), tirx.const(value, "float32")
            return self.scope.loop(count, lambda i: store(buffer, number, i), "i", UNROLL)

        return [fill(self.most, _LOWEST), fill(self.sum, 0.0), fill(self.results, 0.0)]

    def _score(self, step) -> list[tirx.Stmt]:
        """Return the scores of a block, as the tensor cores compute them."""
        count, columns = self.tile.fragments, self.tile.keys // ptx.COLUMNS
        zero = tirx.const(0, "float32")
        clear = self.scope.loop(count * columns * ptx.SUMS, lambda i: store(self.scores, zero, i), "i", UNROLL)
        products = WarpProducts(
            self.scores, self.left_fragments, self.right_fragments, count, columns, self.element, rows_innermost=True
        )
        load = self._right(self.keys, step, columns)
        return [clear, *products.over(self.shape.deep // TERMS, load, lambda k, i: k * count + i)]

    def _right(self, operand: StagedOperand, step, columns: int) -> Callable:
        """Return the function from a step of terms to the statements that load fragments of keys or values."""

        def load(k: int) -> list[tirx.Stmt]:
            at = (self.right_fragments, 0, index(0), self.lane, index(k * TERMS), step, columns // 2, False)
            return operand.fragments(*at)

        return load

    def _value(self, step) -> list[tirx.Stmt]:
        """Replace scores by the operand of softmax; minus infinity past the last key."""
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

    def _weigh(self, step) -> list[tirx.Stmt]:
        """Replace scores of a block by weights, pack these to 16 bits, and rescale the sums and results so far.

        The compiler interleaves this with products; it does so less well if all rows go through each step together.
        """
        made = []
        for i in range(self.tile.fragments):
            for half in range(2):
                made += [*self._weigh_row(i, half, step), *self._fit_results(i, half)]
            made += self._pack(i)
        return made

    def _weigh_row(self, i: int, half: int, step) -> list[tirx.Stmt]:
        row, columns = index(2 * i + half), self.tile.keys // ptx.COLUMNS
        places = [(index(self._place(i, half, j, n)), j, n) for j in range(columns) for n in range(_PAIR)]
        most, shift, shrink = self.new[row], self.shift[row], self.shrink[row]
        made = [
            store(self.new, _tree([self.scores[at] for at, _, _ in places], tirx.max), row),
            store(self.new, tirx.max(self.most[row], ptx.largest(most)), row),
            store(self.shrink, tirx.exp2((self.most[row] - most) * self.e2), row),
            store(self.most, most, row),
            store(self.shift, most * self.e2, row),
        ]
        made += [store(self.scores, tirx.exp2(self.scores[at] * self.e2 - shift), at) for at, _, _ in places]
        added = _tree([self.scores[at] for at, _, _ in places], lambda a, b: a + b)
        made.append(store(self.sum, self.sum[row] * shrink + added, row))
        if self.attention.lonely is not None:
            made += [self._lonely(i, half, step, *place) for place in places]
        return made

    def _fit_results(self, i: int, half: int) -> list[tirx.Stmt]:
        wide, shrink = self.shape.wide // ptx.COLUMNS, self.shrink[index(2 * i + half)]
        places = [index((i * wide + j) * ptx.SUMS + half * 2 + n) for j in range(wide) for n in range(_PAIR)]
        return [store(self.results, self.results[at] * shrink, at) for at in places]

    def _pack(self, i: int) -> list[tirx.Stmt]:
        """Pack the weights of 16 rows as the left operand of the next product."""
        made, terms = [], self.tile.keys // TERMS
        for k in range(terms):
            for word in range(ptx.LEFT):
                half, j = word % 2, 2 * k + word // 2
                pair = [self.scores[index(self._place(i, half, j, n))] for n in range(_PAIR)]
                made.append(ptx.pack(self.weights[index((i * terms + k) * ptx.LEFT + word)], *pair, self.element))
        return made

    def _lonely(self, i: int, half: int, step, at, j: int, n: int) -> tirx.Stmt:
        """Give every key the same weight in rows without any key so far; this weight goes into no sum."""
        weight = self.attention.lonely_at(self.batch, self._row(i, half))
        key = step * index(self.tile.keys) + index(j * ptx.COLUMNS + n) + self.column
        alone = self._is_lonely(index(2 * i + half))
        if self.shape.keys % self.tile.keys:
            alone = tirx.And(alone, key < index(self.shape.keys))
        return self.scope.simplify(store(self.scores, tirx.Select(alone, weight, self.scores[at]), at))

    def _is_lonely(self, row):
        return self.most[row] <= tirx.const(_LOWEST, "float32")

    def _add(self, step) -> list[tirx.Stmt]:
        """Add weights times values to the results."""
        terms, columns, count = self.tile.keys // TERMS, self.shape.wide // ptx.COLUMNS, self.tile.fragments
        products = WarpProducts(
            self.results, self.weights, self.right_fragments, count, columns, self.element, rows_innermost=True
        )
        return products.over(terms, self._right(self.values, step, columns), lambda k, i: i * terms + k)

    # -- places --------------------------------------------------------------------------------------------------------

    def _places(self):
        """Return (fragment of rows, row 0 or 1 in it, fragment of keys, column 0 or 1 in it) of each score."""
        counts = self.tile.fragments, 2, self.tile.keys // ptx.COLUMNS, _PAIR
        return [(i, h, j, n) for i in range(counts[0]) for h in range(2) for j in range(counts[2]) for n in range(2)]

    def _place(self, i: int, half: int, j: int, n: int) -> int:
        return (i * (self.tile.keys // ptx.COLUMNS) + j) * ptx.SUMS + half * 2 + n

    def _row(self, i: int, half: int, inside: bool = True):
        """Return the number of a row; the last row past the end."""
        row = self.scope.analyzer.simplify(self.at + index(i * ptx.ROWS + half * 8))
        some = self.shape.rows % self.tile.rows != 0 and inside
        return tirx.min(row, index(self.shape.rows - 1)) if some else row

    # -- results -------------------------------------------------------------------------------------------------------

    def _finish(self) -> list[tirx.Stmt]:
        made = []
        for row in range(2 * self.tile.fragments):
            # A statement of its own: all lanes exchange their sums, also those whose divisor is replaced below.
            made.append(store(self.sum, ptx.added(self.sum[index(row)]), row))
            if self.attention.lonely is not None:
                one = tirx.const(1, "float32")
                made.append(store(self.sum, tirx.Select(self._is_lonely(index(row)), one, self.sum[index(row)]), row))
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
        """Contiguous columns that are finished and stored as one vector."""
        b, i, chain = fresh("b"), fresh("i"), self.attention.chain
        unknown = [tirx.Var(name, "float32") for name in ("result", "total")]

        def access(j):
            stored = self.attention.leave(*unknown, b, i, j)
            read = places_of(stored.value)
            return None if read is None else [(stored.buffer, tuple(stored.indices)), *read]

        return vector_run(access, self.shape.width, {b: chain.batch_count, i: chain.row_count}, _PAIR)


def _tree(values: list, combine):
    """Combine values as a balanced tree: the chain of dependent operations stays short."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[len(pairs) * 2 :]]
    return values[0]

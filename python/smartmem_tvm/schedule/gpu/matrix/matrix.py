# SPDX-License-Identifier: Apache-2.0
"""GEMM of 16-bit or tf32 factors on tensor cores (matrix instructions): warp tiles over stages of shared memory.

    each thread block (batch, row tile, column tile), in the order of `group_order`:
      sums[i, j] = 0                                       fragments, float32
      start the first stages                               global -> shared memory, asynchronous copies
      for each tile of terms:
        wait for its stage; barrier
        start the stage that comes `stages - 1` later
        for each 32 bytes of terms of the warp's slice:
          load fragments of both operands                  shared memory -> registers
          sums += left @ right                             one instruction per 16 x 8 results
      16 rows of each warp at a time:
        put sums                                           registers -> shared memory
        out[f(i, j)] = finish(sums of all slices)          vectors along the columns

`factors.factors_of` chooses the type of the factors: float16, bfloat16, or tf32 (float32 numbers of which the
instruction reads 19 bits). Folded layout operators become part of the source addresses of copies; an operand with
arithmetic passes through registers. The epilogue is evaluated in float32 where results are stored, and rounded once.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

from tvm import tirx
from tvm.target import Target

from ....ir.kernel import FACTORS, Kernel
from ....ir.texels import is_texture
from ....target import is_cuda
from ...core.decisions import decide, declined, priced
from ...core.nest import SERIAL, UNROLL, Scope, allocate, block, index, scratch, store
from ...core.nest import VECTOR as VECTORIZED
from ..launch import GpuRule, launch, registers, when
from ..machine import FLOAT_BYTES, VECTOR, WARP
from ..matmul.group_order import place_of
from ..matmul.parts import add_parts
from ..matmul.product import MatmulProduct, product_of
from . import instructions as ptx
from .factors import Factors, factors_of
from .staged_operand import StagedOperand, goes_by_itself, lies_along_depth
from .tile import MatrixParams, MatrixTile, Shape, best_matrix_tile, fits, price
from .widened import widened

LEAST = 8  # least rows and columns: with fewer, most results of an instruction are thrown away
_ADDING = 128  # threads of a thread block that adds partial sums (split-K)


class GpuMatrix(GpuRule):
    """The rule for contractions of short numbers on GPUs with matrix instructions."""

    needs = "an NVIDIA GPU of compute capability 8.0 or more"

    def __init__(self, params=None, tile: MatrixTile | None = None):
        super().__init__(params)
        self.tile = tile

    def runs_on(self, target) -> bool:
        """Whether the target is an NVIDIA GPU of compute capability 8.0 or more."""
        return is_cuda(target) and MatrixParams.of(target) is not None

    def params_of(self, target) -> MatrixParams:
        """Return the parameters of the target."""
        return MatrixParams.of(target)

    def params_for(self, func: tirx.PrimFunc, target: Target) -> MatrixParams:
        """Return the parameters for a kernel: its attribute ``smartmem.factors`` names the type to round factors to."""
        params, given = super().params_for(func, target), (func.attrs or {}).get(FACTORS)
        return params if given is None else replace(params, rounds_to=str(given))

    def plan(self, kernel: Kernel, params: MatrixParams) -> _Emitter | None:
        """Return how a folded kernel is tiled; None if it is no product of 16-bit or tf32 factors, or no tile fits."""
        found = multiplied(kernel, params)
        if found is None:
            return None
        product, factors = found
        sides = (factors.left, factors.right)
        params = params.multiplying(factors.element, not all(map(lies_along_depth, sides)))
        held = [not goes_by_itself(each, factors.element) for each in sides]
        shape = Shape(product.batch, product.rows, product.columns, product.depth, *held)
        tile = self.tile or best_matrix_tile(shape, params)
        if tile is None or (tile.group and not params.groups):
            return declined("no tile of the candidates is within the limits of the target")
        facts = {each.name: int(getattr(shape, each.name)) for each in fields(shape)}
        facts |= {"bytes": factors.element.bytes, "groups": int(params.groups)}
        tile = decide("gpu_matrix", tile, lambda other: fits(other, shape, params), **facts)
        priced(lambda: price(tile, shape, params))
        return _Emitter(product, factors, tile)

    def emit(self, plan: _Emitter) -> tirx.Stmt:
        """Return the whole loop nest."""
        return plan.kernel()


def multiplied(kernel: Kernel, params: MatrixParams, least: int = LEAST) -> tuple[FinishedInFloat, Factors] | None:
    """Return the product in a folded kernel and its factors; None if matrix instructions do not take it.

    Parameters
    ----------
    least : int
        Least rows and columns of the product.
    """
    product = product_of(kernel)
    if product is None:
        return declined("no sum of products that has rows and columns")
    factors = factors_of(product, params.rounds_to)
    if factors is None:
        return declined("its factors are no numbers that matrix instructions multiply: float16, bfloat16, tf32")
    if any(map(is_texture, (*kernel.inputs, *kernel.outputs))):
        return declined("it reads or writes textures")
    if min(product.rows, product.columns) < least:
        return declined(f"{product.rows} rows and {product.columns} columns: below {least} an instruction is empty")
    return FinishedInFloat(product.contraction), factors


class FinishedInFloat(MatmulProduct):
    """A product whose epilogue is computed in float32 and rounded to 16 bits only where it is stored."""

    def result(self, value, batch, row, column) -> tirx.Stmt:
        """Store the finished result of a point."""
        stored = super().result(value, batch, row, column)
        dtype = str(stored.buffer.ty.dtype)
        finished = widened(stored.value) if dtype in ptx.SHORT else stored.value
        return tirx.BufferStore(stored.buffer, finished.astype(dtype), stored.indices)


class _Emitter:
    def __init__(self, product: MatmulProduct, factors: Factors, tile: MatrixTile):
        self.product, self.tile, self.scope, self.element = product, tile, Scope(), factors.element
        size = (tile.depth, tile.threads, tile.stages)
        self.left = StagedOperand("left", factors.left, self.element, tile.rows, *size)
        self.right = StagedOperand("right", factors.right, self.element, tile.columns, *size)
        self.fragment_rows, self.fragment_columns = tile.warp_rows // ptx.ROWS, tile.warp_columns // ptx.COLUMNS
        self.sums = registers(tile.sums, "float32", "sums")
        self.down = registers(self.fragment_rows * ptx.LEFT, "uint32", "down")
        self.across = registers(self.fragment_columns * ptx.RIGHT, "uint32", "across")
        # Each number has a register of its own: TVM's code generator would merge loads of equal expressions.
        vectors = (
            self.fragment_rows * tile.slices * -(-tile.warps_down * ptx.ROWS * tile.columns // VECTOR // tile.threads)
        )
        self.lines = registers(vectors * VECTOR, "float32", "lines")
        stages = tile.stages * (self.left.elements + self.right.elements)
        self.each = FLOAT_BYTES // self.element.bytes  # elements of `memory` that a sum takes
        results = self.each * tile.result_rows * tile.result_pitch
        dtype, size = self.element.dtype, [index(max(stages, results))]
        # The type is part of the name: kernels of one program may share a name of dynamic shared memory only if they
        # share its type.
        self.memory = tirx.decl_buffer(size, dtype, f"stages_{self.element.name}", scope="shared.dyn", layout=None)
        self.left.buffer = self.right.buffer = self.memory
        self.right.start_at = tile.stages * self.left.elements
        self.rounds = -(-product.depth // (tile.depth * tile.splits))
        self.parts = scratch([tile.splits, product.batch, product.rows, product.columns], "float32", "parts")

    def kernel(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        if self.tile.splits == 1:
            return self._product()
        adding = add_parts(self.product, self.parts, _ADDING, self.scope)
        return allocate([self.parts], block(self._product(), adding))

    def _product(self) -> tirx.Stmt:
        tile, scope, product = self.tile, self.scope, self.product
        rows, columns = -(-product.rows // tile.rows), -(-product.columns // tile.columns)

        def thread(group, number):
            tiles = place_of(group, rows, columns, min(tile.band or columns, columns))
            whole = tirx.floordiv(group, index(rows * columns))
            batch, part = tirx.floormod(whole, index(product.batch)), tirx.floordiv(whole, index(product.batch))
            place = [scope.analyzer.simplify(each) for each in (part, batch, *tiles)]
            return self._thread(place, number)

        return launch(scope, tile.splits * product.batch * rows * columns, tile.threads, thread)

    def _thread(self, place: list, number) -> tirx.Stmt:
        scope, tile, rounds = self.scope, self.tile, self.rounds
        part, batch, row_tile, column_tile = place
        whole = self.product.depth == rounds * tile.depth * tile.splits
        ahead = tile.stages - 2 if tile.group else tile.stages - 1

        def start(step):
            at = part * index(rounds) + step
            return block(
                self.left.start(scope, number, batch, row_tile, at, whole),
                self.right.start(scope, number, batch, column_tile, at, whole),
            )

        def put(step):
            step = part * index(rounds) + step
            return [self.left.put(scope, number, step), self.right.put(scope, number, step)]

        def first(step):
            brought = block(start(step), *put(step))
            return block(brought if rounds >= ahead else when(step < index(rounds), brought), ptx.commit())

        def round_(step):
            later = step + index(ahead)
            more = later < index(rounds)
            begin = tirx.IfThenElse(more, start(later), None) if rounds > ahead else None
            stored = [each for each in put(later) if each is not None] if rounds > ahead else []
            after = tirx.IfThenElse(more, block(*stored), None) if stored else None
            multiply = self._multiply(number, part * index(rounds) + step)
            seen = ptx.publish() if tile.group else None
            return block(ptx.wait(ahead - 1), seen, ptx.barrier(), begin, ptx.commit(), multiply, after)

        zero = scope.loop(tile.sums, lambda i: store(self.sums, tirx.const(0, "float32"), i), "i", UNROLL)
        begin = scope.loop(ahead, first, "begin")
        body = block(
            ptx.whole(self.memory),
            zero,
            begin,
            scope.loop(rounds, round_, "step"),
            ptx.wait_group(0) if tile.group else None,
            ptx.wait(0),
            ptx.barrier(),
            self._finish(place, number),
        )
        buffers = [self.memory, self.sums, self.lines]
        buffers += [] if tile.group else [self.down, self.across]
        buffers += [each.held for each in (self.left, self.right) if not each.copied]
        return allocate(buffers, body)

    # -- the micro-kernel --------------------------------------------------------------------------------------------

    def _position(self, number) -> tuple:
        """Return (slice, row of warps, column of warps, lane) of a thread."""
        tile, simplify = self.tile, self.scope.analyzer.simplify
        warp, lane = tirx.floordiv(number, index(WARP)), tirx.floormod(number, index(WARP))
        row = tirx.floormod(warp, index(tile.warps_down))
        column = tirx.floormod(tirx.floordiv(warp, index(tile.warps_down)), index(tile.warps_across))
        part = tirx.floordiv(warp, index(tile.warps_down * tile.warps_across))
        return simplify(part), simplify(row), simplify(column), simplify(lane)

    def _multiply(self, number, step) -> tirx.Stmt:
        tile = self.tile
        part, row, column, lane = self._position(number)
        if tile.group:
            return self._multiply_group(part, row, column, step)
        statements = []
        steps = tile.steps(self.element)
        for n in range(steps):
            k = (part * index(steps) + index(n)) * index(self.element.terms)
            rows, columns = row * index(tile.warp_rows), column * index(tile.warp_columns)
            pairs = self.fragment_rows, self.fragment_columns // 2
            statements += self.left.fragments(self.down, 0, rows, lane, k, step, pairs[0], True)
            statements += self.right.fragments(self.across, 0, columns, lane, k, step, pairs[1], False)
            statements += [self._add(i, j) for i in range(self.fragment_rows) for j in range(self.fragment_columns)]
        return block(*statements)

    def _multiply_group(self, part, row, column, step) -> tirx.Stmt:
        tile, statements = self.tile, [ptx.begin_group()]
        sums = [self.sums[index(n)] for n in range(tile.sums)]
        first = tirx.floordiv(row, index(4)) * index(64)
        steps = tile.steps(self.element)
        for n in range(steps):
            k = (part * index(steps) + index(n)) * index(self.element.terms)
            left = self.left.matrix(first, k, step)
            right = self.right.matrix(column * index(tile.warp_columns), k, step)
            transposed = (not self.left.along_depth, not self.right.along_depth)
            statements.append(ptx.multiply_group(sums, left, right, self.element, transposed))
        return block(*statements, ptx.end_group(), ptx.wait_group(1))

    def _add(self, i: int, j: int) -> tirx.Stmt:
        def of(buffer, number: int, count: int):
            return [buffer[index(number * count + n)] for n in range(count)]

        sums = of(self.sums, i * self.fragment_columns + j, ptx.SUMS)
        return ptx.multiply(sums, of(self.down, i, ptx.LEFT), of(self.across, j, ptx.RIGHT), self.element)

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self, place: list, number) -> tirx.Stmt:
        """Store the results, 16 rows of each warp at a time."""
        blocks = []
        for i in range(self.fragment_rows):
            again = ptx.barrier() if i else None
            blocks += [again, *self._put_sums(i, number), ptx.barrier(), self._finish_rows(place, i, number)]
        return block(*blocks)

    def _put_sums(self, i: int, number) -> list[tirx.Stmt]:
        tile = self.tile
        part, row, column, lane = self._position(number)
        first = (part * index(tile.warps_down) + row) * index(ptx.ROWS) + tirx.floordiv(lane, index(4))
        stores = []
        for j in range(self.fragment_columns):
            across = (
                column * index(tile.warp_columns) + index(j * ptx.COLUMNS) + tirx.floormod(lane, index(4)) * index(2)
            )
            at = (i * self.fragment_columns + j) * ptx.SUMS
            for half in range(2):
                where = (first + index(half * 8)) * index(tile.result_pitch) + across
                pair = [self.sums[index(at + half * 2 + n)] for n in range(2)]
                stores.append(ptx.write_pair(ptx.address(self.memory, where * index(self.each)), *pair))
        return stores

    def _finish_rows(self, place: list, i: int, number) -> tirx.Stmt:
        tile, product, scope = self.tile, self.product, self.scope
        rows, across = tile.warps_down * ptx.ROWS, tile.columns // VECTOR
        total, run = rows * across, self._result_run
        rounds = -(-total // tile.threads)

        def vector(c):
            at = scope.analyzer.simplify(c * index(tile.threads) + number)
            held, column = tirx.floordiv(at, index(across)), tirx.floormod(at, index(across)) * index(VECTOR)
            first = (index(i * rounds) + c) * index(tile.slices * VECTOR)
            read = [self._read(first, other, held, column) for other in range(tile.slices)]
            warp, inside = tirx.floordiv(held, index(ptx.ROWS)), tirx.floormod(held, index(ptx.ROWS))
            row = scope.analyzer.simplify(
                place[2] * index(tile.rows) + warp * index(tile.warp_rows) + index(i * ptx.ROWS) + inside
            )
            column = scope.analyzer.simplify(place[3] * index(tile.columns) + column)
            finish = self._results(place, row, column, first, run)
            if product.rows % tile.rows:
                finish = tirx.IfThenElse(row < index(product.rows), finish, None)
            done = block(*read, finish)
            return done if total % tile.threads == 0 else when(at < index(total), done)

        # Unrolled here: in a loop TVM would merge the registers of all rounds.
        return block(*(vector(index(c)) for c in range(rounds)))

    def _read(self, first, other: int, held, column) -> tirx.Stmt:
        tile = self.tile
        row = held + index(other * tile.warps_down * ptx.ROWS)
        place = (row * index(tile.result_pitch) + column) * index(self.each)
        numbers = [self.lines[first + index(other * VECTOR + n)] for n in range(VECTOR)]
        return ptx.read_vector(numbers, ptx.address(self.memory, place))

    def _results(self, place: list, row, column, first, run: int) -> tirx.Stmt:
        product, scope, slices = self.product, self.scope, self.tile.slices
        stores = []
        for begin in range(0, VECTOR, run):
            at = column + index(begin)

            def result(v, begin=begin, at=at):
                total = self.lines[first + index(begin) + v]
                for other in range(1, slices):
                    total = total + self.lines[first + index(other * VECTOR + begin) + v]
                return scope.simplify(self._result(total, place, row, at + v))

            stored = scope.loop(run, result, "v", VECTORIZED if run > 1 else SERIAL)
            exists = None if product.columns % self.tile.columns == 0 else at < index(product.columns)
            stores.append(when(exists, stored))
        return block(*stores)

    @property
    def _result_run(self) -> int:
        if self.tile.splits == 1:
            return self.product.result_run(VECTOR)
        return math.gcd(self.product.columns, VECTOR)

    def _result(self, value, place: list, row, column) -> tirx.Stmt:
        part, batch = place[:2]
        if self.tile.splits > 1:
            return store(self.parts, value, part, batch, row, column)
        return self.product.result(value, batch, row, column)

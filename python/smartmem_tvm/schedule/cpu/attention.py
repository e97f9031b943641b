# SPDX-License-Identifier: Apache-2.0
"""Chains of rows on a CPU (attention, softmax after a matmul): a block of rows at a time, from first to last stage.

    parallel for (batch, chunk of blocks):
      keys[panel, depth, width] = ...; values[...] = ...      the matrices of the products, packed once
      for each block of rows:
        scores[rows, keys] = queries * keys                   register tiles
        for each row: maximum, exp, sum, quotient             in the cache, in place
        out[rows, columns] = scores * values                  register tiles

The tensors between stages are buffers for one block of rows, which fit in the second-level cache. All blocks have one
size: where it does not divide the rows, the last block begins earlier and computes some rows again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

from ...analysis.row_chain import RowChain, row_chain_of
from ...ir.codes import codes_of
from ...ir.kernel import Kernel, Opaque, Stage
from ..core.decisions import decide, declined
from ..core.expressions import split_index
from ..core.nest import PARALLEL, SERIAL, Scope, allocate, block, index, split_work
from ..core.reduction import combiner_of
from . import machine
from .cost import STRIDED
from .gemm import amx
from .gemm.chain_product import ChainProduct, chain_product, on_amx
from .params import CpuParams
from .priced_work import Rates, Threads
from .row_stages import RowStages
from .rule import CpuRule
from .tile import best_tile


@dataclass(frozen=True)
class BlockChoice:
    """The choices for a chain: rows of a block, tasks that share the blocks of a batch, whether tasks are parallel."""

    length: int
    chunks: int
    parallel: bool


class RowChains(CpuRule):
    """The rule for kernels of several reductions whose stages share rows, at least one of them a matrix product."""

    def prepare(self, kernel: Kernel) -> Kernel:
        """Return the kernel unchanged: a stage that is folded into a statistic would be computed twice."""
        return kernel

    def plan(self, kernel: Kernel, params: CpuParams) -> _RowChainNest | None:
        """Return the rows cut into blocks, or None if the kernel is no chain of rows."""
        chain = self.chain(kernel)
        if chain is None:
            return declined("no several reductions that share rows, a matrix product among them")
        return _RowChainNest(chain, params)

    def emit(self, plan: _RowChainNest) -> tirx.Stmt:
        """Return the loop nest; the register tile of each product is decided while it is emitted."""
        return plan.kernel()

    @staticmethod
    def chain(kernel: Kernel) -> RowChain | None:
        """Return the chain in a kernel that this rule takes, or None."""
        if sum(bool(stage.reduction) for stage in kernel.stages) < 2 or len(kernel.outputs) != 1:
            return None
        try:
            chain = row_chain_of(kernel)
        except Opaque:
            return None
        known = all(combiner_of(s) is not None for s in chain.kernel.stages if s.reduction)
        if not known or not chain.products or chain.row_count < 2:
            return None
        # Each block of rows would unpack a weight in codes again.
        coded = any(codes_of(side) is not None for each in chain.products.values() for side in (each.left, each.right))
        return None if coded else chain


def chain_in(func: tirx.PrimFunc, target: Target) -> RowChain | None:
    """Return the chain of rows that `RowChains` recognises in an unscheduled kernel, or None."""
    return RowChains().ask(func, target, lambda kernel, _: RowChains.chain(kernel))


@dataclass(frozen=True)
class Blocks:
    """Rows cut into `count` blocks of `length` rows; the last one may overlap the one before it.

    `chunks` tasks share the blocks of a batch.
    """

    rows: int
    length: int
    count: int
    chunks: int
    parallel: bool

    @classmethod
    def of(cls, chain: RowChain, params: CpuParams, batch: int, parallel: bool) -> Blocks:
        """Return blocks that fit in the cache, for the number of tasks that finishes first."""
        rows = chain.row_count
        fit = max(1, params.block_bytes // (machine.FLOAT_BYTES * chain.widest))
        most = min(rows, params.tasks) if parallel else 1

        rates, threads = Rates(params), Threads(params.cores if parallel else 1)

        def last(chunks: int) -> float:
            # Of each element of the matrices: packing it takes about as long as multiplying it with `lanes` rows.
            task = [(1 + rows / chunks / params.lanes, STRIDED)]
            return rates.until_last_of(threads, batch * chunks, task)

        chunks = min(range(1, max(most, 1) + 1), key=last)
        count = -(-max(-(-rows // fit), chunks) // chunks) * chunks
        length = -(-rows // count)
        if count > 1:
            height = max(best_tile(length, chain.width(s), params).height for s in chain.products)
            length = min(rows, -(-length // height) * height)
        sizes = {"batch": batch, "rows": rows, "widest": chain.widest, "products": len(chain.products)}
        choice = decide("row_chain", BlockChoice(length, chunks, parallel), **sizes, **params.facts)
        count = -(-rows // choice.length)
        return cls(rows, choice.length, count, min(choice.chunks, count), choice.parallel)

    def first(self, number):
        """Return the first row of block `number`."""
        start = number * index(self.length)
        return start if self.count * self.length == self.rows else tirx.min(start, index(self.rows - self.length))


class _RowChainNest:
    def __init__(self, chain: RowChain, params: CpuParams):
        self.chain, self.params, self.scope = chain, params, Scope()
        self.batch = chain.batch_count
        self.on_amx = any(on_amx(product, params) for product in chain.products.values())
        work = sum(math.prod(s.extents.values()) for s in chain.kernel.stages)
        self.blocks = Blocks.of(chain, params, self.batch, work >= params.serial_below)

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        length, chunks = split_work(self.blocks.count, self.blocks.chunks)

        def task(number):
            simplify = self.scope.analyzer.simplify
            batch = simplify(tirx.floordiv(number, index(chunks)))
            first = simplify(tirx.floormod(number, index(chunks)) * index(length))
            return self._task(batch, first, length)

        tasks = self.batch * chunks
        nest = self.scope.loop(tasks, task, "task", PARALLEL if self.blocks.parallel and tasks > 1 else SERIAL)
        return block(amx.ask_for_tiles(), nest) if self.on_amx else nest

    def _task(self, batch, first, length: int) -> tirx.Stmt:
        chain, rows = self.chain, self.blocks.length
        place = split_index(batch, chain.batch, chain.extents)
        stages = RowStages(chain, self.params, self.scope, rows, place)
        products = {s: chain_product(stages, s, self.params) for s in chain.products}
        packing = [p.pack() for p in products.values()]
        count = length
        if self.blocks.count % length:
            count = tirx.min(index(length), index(self.blocks.count) - first)

        def one(number):
            return self._block(stages.at_rows(self.blocks.first(first + number)), products)

        nest = self.scope.loop(count, one, "block", most=length)
        nest = block(*packing, nest)
        if self.on_amx:
            words = amx.configuration()
            nest = allocate([words], block(amx.configure(words), nest, amx.release()))
        return allocate([*(p.packed for p in products.values()), *stages.buffers], nest)

    def _block(self, stages: RowStages, products: dict[Stage, ChainProduct]) -> tirx.Stmt:
        """Return all stages on one block; the stages between products run row by row."""
        statements, waiting = [], []
        done: Stage | None = None
        for stage in self.chain.kernel.stages:
            if stage is done:
                continue
            if stage not in products:
                waiting.append(stage)
                continue
            statements += stages.row_by_row(waiting)
            waiting, done = [], stages.finish_of(stage)
            statements.append(products[stage].multiply(done))
        return block(*statements, *stages.row_by_row(waiting))

# SPDX-License-Identifier: Apache-2.0
"""Chains of rows on a GPU (attention, softmax after a matmul): a thread block takes a block of rows to the end.

    each thread block (batch, block of rows):
      queries                                    shared memory
      scores[rows, keys] = queries * keys        keys pass through shared memory, scores stay there
      maximum, exp, sum of each row              registers, several threads per row
      out[rows, columns] = scores * values       values pass through shared memory

Scores and statistics never reach global memory. Rows past the end repeat the last row and are not stored.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import tirx
from tvm.target import Target

from ....analysis.row_chain import RowChain, row_chain_of
from ....ir.kernel import Kernel, Opaque
from ....target import GRAPH_LAUNCH, Limits
from ...core.decisions import decide, declined, priced
from ...core.nest import Scope, allocate, block, index
from .. import cost
from ..launch import GpuRule, launch
from ..machine import FLOAT_BYTES
from ..matmul.matmul_tile import GpuMatmulParams, best_gpu_tile, described
from .chain_plan import ChainPlan
from .chain_tile import ChainTile, GpuChainParams, best_chain_tile, price, shared_bytes, work_size
from .row_block import RowBlock
from .row_product import RowProduct

_Plan = tuple[ChainPlan, ChainTile, Limits]


class GpuRowChains(GpuRule):
    """The rule for kernels of several reductions whose stages share rows, at least one of them a matrix product.

    Parameters
    ----------
    params : GpuChainParams, optional
        By default those of the target.
    tile : ChainTile, optional
        By default the one that `best_chain_tile` chooses.
    """

    sizes = GpuChainParams

    def __init__(self, params: GpuChainParams | None = None, tile: ChainTile | None = None):
        super().__init__(params)
        self.tile = tile

    def prepare(self, kernel: Kernel) -> Kernel:
        """Return the kernel unchanged: a stage folded into a statistic would be computed twice."""
        return kernel

    def plan(self, kernel: Kernel, params: GpuChainParams) -> _Plan | None:
        """Return how the rows are tiled; None if the kernel is no chain of rows, or one too long for a thread block."""
        if sum(bool(stage.reduction) for stage in kernel.stages) < 2 or len(kernel.outputs) != 1:
            return declined("fewer than two reductions, or several results")
        try:
            plan = ChainPlan(row_chain_of(kernel))
        except Opaque as reason:
            return declined(str(reason))
        objection = _objection(plan, params) if self.tile is None else ""
        if objection:
            return declined(objection)
        tile = self.tile or best_chain_tile(plan.shape, params)

        def fits(other: ChainTile) -> bool:
            return shared_bytes(plan.shape, other) <= params.limits.shared_bytes

        decided = decide("gpu_row_chain", tile, fits, **_facts(plan, params))
        priced(lambda: price(plan.shape, decided, params))
        return plan, decided, params.limits

    def emit(self, plan: _Plan) -> tirx.Stmt:
        """Return the whole loop nest."""
        return _kernel(*plan)


def _facts(plan: ChainPlan, params: GpuChainParams) -> dict[str, int]:
    """Return the sizes that the choice of a tile depends on."""
    shape = plan.shape
    facts = {"batch": shape.batch, "rows": shape.rows, "longest": shape.longest, "products": len(shape.products)}
    for number, product in enumerate(shape.products):
        facts |= {f"columns{number}": product.columns, f"depth{number}": product.depth}
    limits = params.limits
    return facts | {"threads": limits.work_group, "shared": limits.shared_bytes, "least_rows": params.least_rows}


def chain_params(target: Target) -> GpuChainParams:
    """Return the parameters of chains for a GPU."""
    return GpuChainParams.of(Limits.of(target))


def refusal(chain: RowChain, params: GpuChainParams) -> str:
    """Return the reason why a chain does not pay as one kernel of a GPU; empty if it does."""
    try:
        plan = ChainPlan(chain)
    except Opaque as why:
        return str(why)
    objection = _objection(plan, params)
    if objection:
        return objection
    together = price(plan.shape, best_chain_tile(plan.shape, params), params).cycles
    apart = _apart(plan, params)
    if together > apart:
        return f"one kernel is estimated to take {together:.0f} cycles, several {apart:.0f}: too few blocks of rows"
    return ""


def _apart(plan: ChainPlan, params: GpuChainParams) -> float:
    """Estimate the cycles of separate kernels: one per product, one for its row-wise work if that has statistics."""
    # The second kernel of a split product costs a launch in a CUDA graph here, even where the host launches kernels one
    # by one: the estimate was compared with measurements at that cost.
    sizes = GpuMatmulParams.of(replace(params.limits, launch_cycles=GRAPH_LAUNCH))
    between = params.rates.last_level * params.limits.processors
    if params.limits.device is not None:
        between = sizes.rates.memory
    shape, total = plan.shape, 0.0
    for part, product in zip(plan.parts, shape.products, strict=True):
        size = (shape.batch, shape.rows, product.columns, product.depth)
        tile = best_gpu_tile(*size, sizes)
        if tile is None:
            return math.inf
        total += cost.cycles(described(tile, *size, sizes), sizes) + params.apart
        if any(stage.reduction for stage in part.stages):
            moved = 2 * FLOAT_BYTES * shape.batch * shape.rows * product.columns
            total += moved / between + params.apart
    return total


def _objection(plan: ChainPlan, params: GpuChainParams) -> str:
    shape = plan.shape
    if shape.rows < params.least_rows:
        return f"{shape.rows} rows share a matrix, too few for a thread block"
    matrices = FLOAT_BYTES * plan.chain.matrix_size
    if matrices > params.matrix_bytes:
        return f"its matrices take {matrices} bytes, too many to be read again for each block of rows"
    if best_chain_tile(shape, params) is None:
        return f"blocks of {params.least_rows} rows do not fit in {params.limits.shared_bytes} bytes on chip"
    return ""


def _kernel(plan: ChainPlan, tile: ChainTile, limits: Limits) -> tirx.Stmt:
    """Return the whole loop nest."""
    scope = Scope()
    blocks = -(-plan.shape.rows // tile.rows)

    def thread_block(number, thread):
        simplify = scope.analyzer.simplify
        batch = simplify(tirx.floordiv(number, index(blocks)))
        first = simplify(tirx.floormod(number, index(blocks)) * index(tile.rows))
        return _rows_to_the_end(plan, RowBlock(plan, tile, scope, thread, batch, first, limits))

    return launch(scope, plan.shape.batch * blocks, tile.threads, thread_block)


def _rows_to_the_end(plan: ChainPlan, rows: RowBlock) -> tirx.Stmt:
    """Return all parts on one block of rows; the next matrix is prefetched during the row-wise work before it."""
    count = len(plan.parts)
    work = rows.share(max(work_size(n, rows.tile) for n in range(count)), "work")
    products = [RowProduct(rows, part, number, work) for number, part in enumerate(plan.parts)]
    statements = [products[0].fetch(index(0))]
    for number, (part, product) in enumerate(zip(plan.parts, products, strict=True)):
        statements += [product.arrange(), product.multiply()]
        if number + 1 < count:
            statements.append(products[number + 1].fetch(index(0)))
        statements.append(rows.work(part.stages))
    return allocate(rows.buffers, block(*statements))

# SPDX-License-Identifier: Apache-2.0
"""FuseAttention: a row of attention scores stays on chip, from the product that makes it to the one that uses it."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import tirx

from ...analysis.classify import reduces
from ...analysis.fusion_price import PRICIER, Prices, judge
from ...analysis.late_division import divide_late
from ...analysis.row_chain import RowChain, row_chain_of, summand
from ...ir.change_axes import aligned
from ...ir.compose import fresh, merge
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.index_map import variables
from ...ir.kernel import Kernel, Opaque, shape_of
from ...ir.walk import loads
from ...tables.fusion_policy import CHAIN_ROWS, FORBIDDEN, ON_CHIP_BYTES, ROW_BUFFERS, SINGLE_ROW_BYTES, may_fuse

FLOAT_BYTES = 4


@tvm.transform.module_pass(opt_level=0, name="smartmem.FuseAttention")
class FuseAttention:
    """Put a product, the statistics of its rows, and a product that sums over these rows into one kernel.

    Before::

        s = matmul_add(q, k, bias)      # [heads, rows, keys]
        p = softmax(s)
        o = matmul(p, v)

    After::

        o = matmul_add_softmax_matmul(q, k, bias, v)     # a block of rows of s and p lives in the cache

    The pass has no pattern of attention. It merges kernels one by one, in execution order, and keeps the result if it
    is a chain of rows (`analysis.row_chain`) that begins with a product and has a statistic. So softmax joins the
    product before it even where no product follows. A single row may also go from product to product: the two layers
    of squeeze-and-excitation, whose intermediate result is a few hundred numbers. Refused are

    1. intermediate results that another kernel reads, or that are results of the function,
    2. stages that leave their row, or read through a map that is no renaming of axes,
    3. chains of 2 to `CHAIN_ROWS` - 1 rows, and rows that are columns in memory: packing them takes longer than
       multiplying them,
    4. chains whose working set does not fit on chip: `CHAIN_ROWS` rows and the matrices of the products (for a single
       row, `SINGLE_ROW_BYTES`).

    Reasons 3 and 4 are those of a CPU; another target brings its own. Some schedule rules take an attention block by
    block of its keys, however long its rows are. For them the first product and the softmax are merged even if the
    pair alone does not pay, because the second product follows. With prices, a chain that is predicted to take longer
    than its two kernels is refused as well: pooling after a convolution, for example, whose windows have too few
    places for a product per window (`analysis.fusion_price`).

    DNNFusion's table refuses these Many-to-Many pairs; no fused kernel of that paper holds one.

    Parameters
    ----------
    on_chip_bytes : int
        Working set that one task of a CPU may have.
    single_row_bytes : float
        Working set of a single row on a CPU; smaller where weights stream within a memory budget, as a kernel waits for
        all of its weights.
    refusal : callable, optional
        Chain of rows -> why it does not pay as one kernel, or an empty string; in place of 3 and 4.
    passing : callable, optional
        Chain of rows -> whether a rule takes it with rows of any length; `refusal` is not called for it then.
    prices : Prices, optional
        Predicted costs of kernels on the target; without them, nothing is refused for its price.
    """

    def __init__(
        self,
        on_chip_bytes: int = ON_CHIP_BYTES,
        refusal: Callable[[RowChain], str] | None = None,
        prices: Prices | None = None,
        passing: Callable[[RowChain], bool] | None = None,
        single_row_bytes: float = SINGLE_ROW_BYTES,
    ):
        self.refusal = refusal or (lambda chain: cpu_refusal(chain, on_chip_bytes, single_row_bytes))
        self.passing = passing
        self.prices = prices

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, lambda graph: fuse_attention(graph, self.refusal, self.prices, self.passing))


def fuse_attention(
    graph: Graph,
    refusal: Callable[[RowChain], str],
    prices: Prices | None = None,
    passing: Callable[[RowChain], bool] | None = None,
) -> list[dict]:
    """Rewrite `graph` in place; chains that `refusal` or their price speaks against stay.

    Neither `refusal` keeps a chain for which `passing` holds, nor one for which it will hold with the only reader of
    its result.

    Returns one decision per pair that could be a chain.
    """
    log = []
    for node in graph:
        for producer in _producers(graph, node):
            try:
                kernels = _aligned(node, producer)
                merged = merge(*kernels, inline_output=False)
                chain = row_chain_of(merged)
            except Opaque:
                continue
            if chain.kernel.stages[0] not in chain.products or not (chain.statistics or is_single_row(chain)):
                continue
            decision = {"pass": "FuseAttention", "operator": producer.members[-1]}
            goes_on = passing is not None and (passing(chain) or _leads_to(graph, node, merged, passing))
            why = "" if goes_on else refusal(chain)
            why = why if may_fuse("attention") else FORBIDDEN
            if why:
                log.append({**decision, "action": "kept", "reason": why})
                continue
            verdict = judge(prices, [divide_late(merged)], (producer.kernel, node.kernel))
            decision |= verdict.noted
            if verdict.refuses:
                log.append({**decision, "action": "kept", "reason": PRICIER})
                continue
            node.kernel, _, producer.kernel = kernels
            graph.absorb(node, producer, inline_output=False)
            graph.remove(producer)
            node.kernel = divide_late(node.kernel)
            why = "a block of its rows stays on chip until the kernel is done with it"
            log.append({**decision, "action": "fused", "into": [node.var.name], "reason": why})
    return log


def _leads_to(graph: Graph, node: Node, merged: Kernel, passing: Callable[[RowChain], bool]) -> bool:
    """Whether `merged`, in the place of `node`, and its only reader make a chain for which `passing` holds."""
    readers = graph.readers(node.var)
    if graph.is_output(node.var) or len(readers) != 1 or readers[0].kernel is None or not reduces(readers[0].kernel):
        return False
    reader = readers[0]
    try:
        buffer = reader.kernel.inputs[[a.same_as(node.var) for a in reader.args].index(True)]
        return passing(row_chain_of(merge(*aligned(reader.kernel, buffer, fresh(merged)), inline_output=False)))
    except Opaque:
        return False


def is_single_row(chain: RowChain) -> bool:
    """Whether the chain has one row and one set of matrices."""
    return chain.row_count * chain.batch_count == 1


def cpu_refusal(chain: RowChain, on_chip_bytes: int, single_row_bytes: float = SINGLE_ROW_BYTES) -> str:
    """Return why a chain does not pay as one kernel of a CPU whose tasks have `on_chip_bytes`; empty if it does."""
    needed = working_set(chain)
    if needed > (single_row_bytes if is_single_row(chain) else on_chip_bytes):
        return f"its rows and matrices take {needed} bytes, too many to work on by one core"
    if 1 < chain.row_count < CHAIN_ROWS or (chain.row_count == 1 and chain.batch_count > 1):
        return f"{chain.row_count} rows use a matrix, too few to pay for arranging it"
    first = chain.kernel.stages[0]
    if not walks_along(chain.products[first].left, first.reduction):
        return "its rows do not lie along the depth of the product"
    return ""


def _producers(graph: Graph, node: Node) -> list[Node]:
    """Return the reducing kernels that only `node` reads."""
    if node.kernel is None or not reduces(node.kernel):
        return []
    found = [p for p in map(graph.producer, node.operands) if p is not None and p.kernel is not None]
    mine = [p for p in found if not graph.is_output(p.var) and graph.readers(p.var) == [node]]
    return [p for p in mine if reduces(p.kernel) and len(p.kernel.outputs) == 1 and _may_pay(p.kernel, node.kernel)]


def _may_pay(first: Kernel, second: Kernel) -> bool:
    """Whether the pair has a statistic, or one row only: a cheap test before the kernels are merged."""
    one_row = math.prod(shape_of(first.outputs[0])) == max(shape_of(first.outputs[0]), default=1)
    return one_row or any(
        s.reduction and not isinstance(summand(s), tirx.Mul) for k in (first, second) for s in k.stages
    )


def _aligned(node: Node, producer: Node) -> tuple[Kernel, object, Kernel]:
    """Return reader, its input and producer, with iterators that keep the reader in the rows of the producer."""
    buffer = node.kernel.inputs[[a.same_as(producer.var) for a in node.args].index(True)]
    return aligned(node.kernel, buffer, fresh(producer.kernel))


def working_set(chain: RowChain) -> int:
    """Return the bytes of a task's working set: its rows, and all matrices that it multiplies them with."""
    rows = min(CHAIN_ROWS, chain.row_count) * chain.widest * ROW_BUFFERS
    return FLOAT_BYTES * (rows + chain.matrix_size)


def walks_along(value, depth: tuple) -> bool:
    """Whether every load of `value` that iterates over `depth` does so in its last dimension (of more than one)."""
    for load in loads(value):
        places = [i for i, extent in zip(load.indices, shape_of(load.source), strict=True) if extent > 1]
        used = [any(v in depth for v in variables(i)) for i in places]
        if any(used) and not used[-1]:
            return False
    return True

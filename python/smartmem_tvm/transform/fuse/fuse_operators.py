# SPDX-License-Identifier: Apache-2.0
"""FuseOperators: pointwise operators join the reductions before or after them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, tirx

from ...analysis.classify import reduces
from ...analysis.fusion import MEASURED, POLICY, SCHEDULES, FusionCheck, FusionDecision, Profiles, result_bytes, work
from ...analysis.fusion_price import PRICE, Prices, position
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.kernel import Kernel
from ...ir.walk import collect
from ...tables.mapping_type import MappingType

# DNNFusion's transformation impedance: the rank of a mapping type, One-to-One first.
_BYTES = ("int8", "uint8")
_IMPEDANCE = {kind: rank for rank, kind in enumerate(MappingType)}


@tvm.transform.module_pass(opt_level=0, name="smartmem.FuseOperators")
class FuseOperators:
    """Explore a fusion plan from seeds (DNNFusion 4.3, Listing 1), after layout operators are gone.

    Before::

        a = matmul(x, w)
        b = add(a, bias)
        c = gelu(b)
        d = add(c, residual)

    After::

        d = matmul_add_gelu_add(x, w, bias, residual)      # one kernel

    1. The seed is the One-to-One operator with the smallest intermediate result; operators of other mapping types
       follow when none is left.
    2. The block grows to its successors, from each to the next: a block with a single reader is computed in that
       reader, if the reader evaluates each of its elements once.
    3. The block grows to its predecessors: a reduction that only the block reads takes it in as its last stage.
    4. A cheap block that neither step fuses is computed again in each of its readers.

    `analysis.fusion` decides each step: green cells of Table 3 fuse, red ones do not, the profile store decides yellow
    ones; registers and local memory limit all of them. Refusals keep their reason.

    Parameters
    ----------
    profiles : Profiles, optional
        A `tune.profile_store.ProfileStore`; without one the cost model of `analysis.fusion` decides yellow cells.
    prices : Prices, optional
        Predicted costs of kernels on the target. They decide where a fusion makes windows compute a value repeatedly.
    is_product : callable, optional
        Kernel -> whether schedules recognise a product in it (`schedule.is_product`). A view stays a kernel of its own
        if with it the schedules would no longer recognise the product.
    """

    def __init__(
        self,
        profiles: Profiles | None = None,
        prices: Prices | None = None,
        is_product: Callable[[Kernel], bool] | None = None,
    ):
        self.known = profiles, prices, is_product

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, lambda graph: FusionPlan(graph, FusionCheck(graph, *self.known)).explore())


class FusionPlan:
    """Blocks growing in one graph; `explore` rewrites it in place."""

    def __init__(self, graph: Graph, check: FusionCheck):
        self.graph, self.check = graph, check
        self.decisions: dict[str, dict] = {}

    def explore(self) -> list[dict]:
        """Grow from every seed until nothing changes; returns one decision for each pointwise operator."""
        grown = True
        while grown:  # a block may take in an operator that it refused, once another block has left the graph
            grown = False
            for seed in self.seeds():
                grown |= seed in self.graph and self.grow(seed)
        return list(self.decisions.values())

    def seeds(self) -> list[Node]:
        """Return the pointwise nodes: the simplest mapping type first, within a type the smallest result first."""
        nodes = [node for node in self.graph if _is_pointwise(node)]
        return sorted(nodes, key=lambda node: (_IMPEDANCE[self.check.type_of(node)], result_bytes(node)))

    def grow(self, block: Node) -> bool:
        """Fuse every node that may join `block`; return whether one was fused."""
        grown = False
        while (bigger := self.fuse_successor(block) or self.fuse_predecessor(block)) is not None:
            block, grown = bigger, True
        return self.repeat_in_readers(block) or grown

    def fuse_successor(self, block: Node) -> Node | None:
        """Take step 2; return the grown block, or None."""
        readers = self.graph.readers(block.var)
        if len(readers) != 1 or block.kernel is None:
            return None
        (reader,) = readers
        # Without prices (GPUs) a product that quantizes stays so, too: the sum of two branches takes in one of them.
        if (_is_pointwise(block) or self.check.prices is None) and _is_stored_in_bytes(block, reader):
            return None
        if not _is_pointwise(block):
            return self._append(block, reader) if _is_pointwise(reader) else None
        decision = self.check.inline(block, readers, once=True)
        self._record(block, decision, readers)
        return self._inline(block, readers)[0] if decision.fuse else None

    def fuse_predecessor(self, block: Node) -> Node | None:
        """Take step 3; of several reductions the one with the most work takes the block in."""
        if not _is_pointwise(block):
            return None
        nodes = [self.graph.producer(arg) for arg in block.args]
        candidates = [p for p in nodes if p is not None and p.kernel is not None and reduces(p.kernel)]
        for producer in sorted(candidates, key=work, reverse=True):
            if self._append(producer, block):
                return block
        return None

    def repeat_in_readers(self, block: Node) -> bool:
        """Take step 4; return whether the block was fused."""
        readers = self.graph.readers(block.var)
        if not _is_pointwise(block) or any(_is_stored_in_bytes(block, reader) for reader in readers):
            return False
        decision = self.check.inline(block, readers)
        self._record(block, decision, readers)
        return decision.fuse and bool(self._inline(block, readers))

    def _append(self, producer: Node, node: Node) -> Node | None:
        decision = self.check.append(producer, node)
        if decision.worth_logging:
            self._record(node, decision, [node])
        if not decision.fuse:
            return None
        self.graph.absorb(node, producer, inline_output=False)
        self.graph.remove(producer)
        return node

    def _inline(self, node: Node, readers: list[Node]) -> list[Node]:
        for reader in readers:
            self.graph.absorb(reader, node, inline_output=True)
        self.graph.remove(node)
        return readers

    def _record(self, node: Node, decision: FusionDecision, into: list[Node]) -> None:
        operator = node.members[-1]
        if not decision.fuse and self.decisions.get(operator, {}).get("decided_by", "").startswith(
            (MEASURED, SCHEDULES, PRICE, POLICY)
        ):
            return  # keep the earlier reason, by measurement, schedule, price or policy, which is more specific
        entry = {"pass": "FuseOperators", "operator": operator, "action": "fused" if decision.fuse else "kept"}
        if decision.fuse:
            entry["into"] = [reader.var.name for reader in into]
        self.decisions[operator] = {**entry, "reason": decision.reason, **decision.noted}


def _is_stored_in_bytes(block: Node, reader: Node) -> bool:
    """Whether a block makes bytes of wider numbers, which its reader widens again.

    Between the two, memory is narrowest: what quantizes belongs to the kernel before, and what dequantizes to the one
    after.
    """
    if reader.kernel is None:
        return False
    if not all(str(each.dtype) in _BYTES for each in block.kernel.outputs) or _widest(block.kernel.inputs) == 1:
        return False
    buffer = reader.kernel.inputs[position(reader, block.var)]
    casts = (each for stage in reader.kernel.stages for each in collect(stage.body, tirx.Cast))
    return any(isinstance(each.value, ir.TensorLoad) and each.value.source.same_as(buffer) for each in casts)


def _widest(buffers) -> int:
    """Return the bytes of an element of the widest type."""
    return max((each.dtype.itemsize for each in buffers), default=0)


def _is_pointwise(node: Node) -> bool:
    return node.kernel is not None and all(stage.is_pointwise for stage in node.kernel.stages)

# SPDX-License-Identifier: Apache-2.0
"""FuseRows: normalisations that exporters write as several operators become one kernel."""

from __future__ import annotations

import math

import tvm
from tvm import ir

from ...analysis.classify import reduces, stage_cost
from ...analysis.fusion_price import PRICIER, Prices, Verdict, judge
from ...ir.compose import single_map
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.kernel import Stage, shape_of
from ...ir.sizes import data_bytes
from ...tables.fusion_policy import CHEAP_OPERATIONS, FORBIDDEN, MOST_MEMBERS, SINGLE_ROW_BYTES, may_fuse


@tvm.transform.module_pass(opt_level=0, name="smartmem.FuseRows")
class FuseRows:
    """Put reductions and the element-wise work on the same rows into one kernel.

    Before::

        m = mean(x, -1)                 # a layer norm as older exporters write it: six kernels
        d = x - m
        v = mean(d * d, -1)
        y = d / sqrt(v + eps)

    After::

        y = mean_subtract_multiply_mean_add_sqrt_divide(x)     # one kernel, one row after the other

    DNNFusion's table refuses these pairs (Many-to-Many with Many-to-Many, One-to-Many before Many-to-Many) because in
    general the second operator needs all of the first. Row by row it does not. A group of nodes is fused if

    1. it ends in one pointwise node, and no other node reads its intermediate results,
    2. every reduction in it uses each element once (a statistic of a row, not a matmul or a convolution), and all
       reduce to the same rows,
    3. every read inside the group stays in its row.

    With prices, a group that is predicted to take longer than its parts is refused as well, for example if its rows
    are columns in memory (`analysis.fusion_price`).

    Parameters
    ----------
    prices : Prices, optional
        Predicted costs of kernels on the target; without them, nothing is refused for its price.
    most_weights : float
        Bytes of constants that a group reads at most, where weights stream within a memory budget: a kernel waits for
        all of them, and layers of one row are no rows that `SliceWeights` could cut.
    """

    def __init__(self, prices: Prices | None = None, most_weights: float = math.inf):
        self.prices, self.most_weights = prices, most_weights

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, lambda graph: fuse_rows(graph, self.prices, self.most_weights))


def fuse_rows(graph: Graph, prices: Prices | None = None, most_weights: float = math.inf) -> list[dict]:
    """Rewrite `graph` in place; returns one decision per group."""
    log, behind, order = [], _behind_statistics(graph), list(graph)
    places = {node: place for place, node in enumerate(order)}
    for node in reversed(order):
        if node not in behind or node not in graph or not _is_pointwise(node):
            continue
        group = sorted(_group_ending_in(graph, node, behind, most_weights), key=places.__getitem__, reverse=True)
        if len(group) < 2:
            continue
        trial = graph.absorbing(node, [(member, _inlined(member)) for member in group[1:]])
        verdict = judge(prices, [trial.kernel], [member.kernel for member in group])
        log.append(_decision(node, group, verdict))
        if log[-1]["action"] == "fused":
            graph.take(node, trial)
            for member in group[1:]:
                graph.remove(member)
    return log


def _inlined(member: Node) -> bool:
    value = member.kernel.last
    return value.is_pointwise and stage_cost(value) <= CHEAP_OPERATIONS


def _decision(node: Node, group: list[Node], verdict: Verdict) -> dict:
    entry = {"pass": "FuseRows", "operator": node.members[-1], **verdict.noted}
    if verdict.refuses or not may_fuse("rows"):
        return {**entry, "action": "kept", "reason": PRICIER if verdict.refuses else FORBIDDEN}
    labels = [label for member in group for label in member.members]
    why = "rows are independent: each row's statistics and element-wise work stay together"
    return {**entry, "action": "fused", "members": labels, "into": [node.var.name], "reason": why}


def _behind_statistics(graph: Graph) -> set[Node]:
    """Return the nodes that reduce, and all nodes that depend on one: a group consists of these."""
    found: set = set()
    for node in graph:
        if node.kernel is not None and (reduces(node.kernel) or any(p in found for p in _producers(graph, node))):
            found.add(node)
    return found


def _is_pointwise(node: Node) -> bool:
    return node.kernel is not None and len(node.kernel.stages) == 1 and node.kernel.last.is_pointwise


def _is_row_statistic(node: Node) -> bool:
    """Whether the kernel has one output, and each of its reductions reads every element once."""
    kernel = node.kernel
    if kernel is None or len(kernel.outputs) != 1 or not reduces(kernel):
        return False
    # A linear layer over one row is a statistic of it, unless its weight is so large that every core should work on it.
    bound = zip(kernel.inputs, node.args, strict=True)
    small = [b for b, arg in bound if isinstance(arg, ir.Var) or data_bytes(b) <= SINGLE_ROW_BYTES]
    largest = max((math.prod(shape_of(buffer)) for buffer in small), default=0)
    return all(math.prod(stage.extents.values()) <= largest for stage in kernel.stages)


def _group_ending_in(graph: Graph, sink: Node, behind: set[Node], most_weights: float) -> list[Node]:
    """Return the largest group that ends in `sink`, of at most `MOST_MEMBERS` nodes, readers before producers.

    Its members read at most `most_weights` bytes of constants.

    It is ``[sink]`` if nothing joins the sink.
    """
    last = sink.kernel.last
    axes: dict = {var: axis for axis, var in enumerate(last.spatial) if last.extents[var] > 1}
    group, rows = [sink], None
    frontier = _producers(graph, sink)
    while frontier and len(group) < MOST_MEMBERS:
        candidate = frontier.pop(0)
        readers = graph.readers(candidate.var)
        if candidate not in behind or candidate in group or not set(readers) <= set(group):
            continue
        if not (_is_pointwise(candidate) or _is_row_statistic(candidate)):
            continue
        labels = _labels(candidate, readers, axes)
        if labels is None or sum(map(_constant_bytes, (*group, candidate))) > most_weights:
            continue
        if reduces(candidate.kernel):
            mine = {labels[v] for v in candidate.kernel.last.spatial if v in labels}
            if rows is not None and mine != rows:
                continue
            rows = mine
        axes.update(labels)
        group.append(candidate)
        frontier += _producers(graph, candidate)
    return _behind_a_reduction(graph, group)


def _constant_bytes(node: Node) -> int:
    return sum(data_bytes(arg.value) for arg in node.args if isinstance(arg, ir.Constant))


def _producers(graph: Graph, node: Node) -> list[Node]:
    found = [graph.producer(arg) for arg in node.args if isinstance(arg, ir.Var)]
    return [p for p in found if p is not None and p.kernel is not None and not graph.is_output(p.var)]


def _labels(candidate: Node, readers: list[Node], axes: dict) -> dict | None:
    """Return the axis of the sink that each variable of `candidate` runs along, or None if a read leaves its row."""
    reads = []
    for reader in readers:
        buffer = reader.kernel.inputs[[a.same_as(candidate.var) for a in reader.args].index(True)]
        reads += [(stage, buffer) for stage in reader.kernel.readers(buffer)]
    labels: dict = {}
    stages = candidate.kernel.stages
    for stage in reversed(stages):
        inner = [(s, b) for b in stage.outputs for s in candidate.kernel.readers(b)]
        mine = _stage_labels(stage, inner or reads, {**axes, **labels})
        if mine is None:
            return None
        labels.update(mine)
    return labels


def _stage_labels(stage: Stage, reads: list, axes: dict) -> dict | None:
    """Return the labels of a stage's spatial variables, taken from the `reads` of its result.

    Reduction variables of a reader give no label.
    """
    labels: dict = {}
    for reader, buffer in reads:
        indices = single_map(reader, buffer)
        if indices is None:
            return None
        for var, index in zip(stage.spatial, indices, strict=True):
            if stage.extents[var] == 1:
                continue
            if not isinstance(index, ir.Var) or reader.extents.get(index) != stage.extents[var]:
                return None
            if index in axes and labels.setdefault(var, axes[index]) != axes[index]:
                return None
    return labels if len(set(labels.values())) == len(labels) else None


def _behind_a_reduction(graph: Graph, group: list[Node]) -> list[Node]:
    """Leave out the nodes before the first reduction: fusion by mapping type places them better."""
    kept: set = set()
    for node in reversed(group):
        if reduces(node.kernel) or any(p in kept for p in _producers(graph, node)):
            kept.add(node)
    return [node for node in group if node in kept]

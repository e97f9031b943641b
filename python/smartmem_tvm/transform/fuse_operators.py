# SPDX-License-Identifier: Apache-2.0
"""FuseOperators: pointwise operators ride along with the reductions before or after them."""

from __future__ import annotations

import math

import tvm
from tvm import ir

from ..analysis.classify import (
    CHEAP,
    MOST_DIVISIONS,
    cost,
    mapping_type,
    movement,
    quadrant,
    reduces,
    transcendental_calls,
)
from ..analysis.compose import can_reindex, single_map
from ..analysis.graph import Graph, Node, rewrite_graphs
from ..analysis.index_map import division_count, visits_once
from ..analysis.kernel import Kernel, shape_of
from ..tables.action import TABLE_5, Action
from ..tables.mapping_type import TABLE_3, MappingType, Verdict

# Bytes of traffic one kernel launch is worth when the cost model weighs recomputing against materialising.
LAUNCH_BYTES = 64 * 1024
# A kernel takes in no more once its element-wise values call this many functions: the polynomials that replace nested
# calls write their argument out many times, so that code multiplies where functions are nested.
MOST_CALLS = 4


@tvm.transform.module_pass(opt_level=0, name="smartmem.FuseOperators")
class FuseOperators:
    """Fuse by mapping type (DNNFusion Table 3), after layout operators are gone.

    Before::

        a = matmul(x, w)
        b = add(a, bias)
        c = gelu(b)
        d = add(c, residual)

    After::

        d = matmul_add_gelu_add(x, w, bias, residual)      # one kernel

    Every pointwise operator ``e`` is visited in execution order and

    1. joins its producer if that reduces, is read by ``e`` only, and ``e`` reads each of its elements at most once
       through one map (a view left in ``e`` becomes the order in which the producer writes);
    2. otherwise is computed inside all of its readers, if the table and the cost model allow it for each;
    3. otherwise stays a kernel of its own, with the reason.

    Green cells fuse, red cells do not, yellow cells ask the cost model below until measured profiles exist. A value
    that is expensive (`analysis.classify.CHEAP`) is never evaluated more than once per element: not inside a reduction
    that reads it again and again, and not in two readers.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, fuse)


def fuse(graph: Graph) -> list[dict]:
    """Rewrite `graph` in place; returns one decision for each pointwise operator in it."""
    decisions: dict[str, dict] = {}
    changed = True
    while changed:  # what one operator could not join, it may once another one has left
        changed = False
        for node in graph:
            if node.kernel is None or not all(stage.is_pointwise for stage in node.kernel.stages):
                continue
            label = node.members[-1]
            decision = _join_producer(graph, node) or _join_readers(graph, node)
            decisions[label] = {"pass": "FuseOperators", "operator": label, **decision}
            changed |= decision["action"] == "fused"
    return list(decisions.values())


def _constants(node: Node) -> tuple:
    return tuple(b for b, a in zip(node.kernel.inputs, node.args, strict=True) if isinstance(a, ir.Constant))


def _type(node: Node) -> MappingType:
    return mapping_type(node.kernel, _constants(node))


def _calls(node: Node) -> int:
    """Transcendental calls in the element-wise stages of a kernel."""
    return sum(transcendental_calls(stage.body) for stage in node.kernel.stages if stage.is_pointwise)


def _join_producer(graph: Graph, node: Node) -> dict | None:
    """Case 1: the pointwise `node` becomes the last stage of a reduction that only it reads."""
    candidates = [p for p in map(graph.producer, node.args) if p and _can_end_with(p, node, graph)]
    if not candidates:
        return None
    producer = max(candidates, key=lambda p: _work(p.kernel))
    first, second = _type(producer), _type(node)
    verdict = TABLE_3[first, second].verdict
    action = TABLE_5[quadrant(producer.kernel), quadrant(node.kernel)]
    if verdict is Verdict.NEVER or action not in (Action.TRY_FUSE, Action.ELIMINATE_SECOND):
        return None
    graph.absorb(node, producer, inline_output=False)
    graph.remove(producer)
    why = f"{first.value} then {second.value}: {verdict.value}, each element is read once"
    return {"action": "fused", "into": [node.var.name], "reason": why}


def _can_end_with(producer: Node, node: Node, graph: Graph) -> bool:
    if producer.kernel is None or graph.is_output(producer.var) or not reduces(producer.kernel):
        return False
    if graph.readers(producer.var) != [node] or _calls(producer) + _calls(node) > MOST_CALLS:
        return False
    buffer = node.kernel.inputs[_position(node, producer.var)]
    stage, last = node.kernel.last, producer.kernel.last
    indices = single_map(stage, buffer) if node.kernel.readers(buffer) == [stage] else None
    if indices is None or not (last.is_pointwise or can_reindex(last)):
        return False
    return visits_once(indices, stage.extents, shape_of(buffer))


def _work(kernel: Kernel) -> int:
    """Points of all iteration spaces of a kernel."""
    return sum(math.prod(stage.extents.values()) for stage in kernel.stages)


def _position(node: Node, var) -> int:
    return next(i for i, arg in enumerate(node.args) if arg.same_as(var))


def _join_readers(graph: Graph, node: Node) -> dict:
    """Case 2: the pointwise `node` is computed inside each of its readers."""
    readers = graph.readers(node.var)
    reason = _refusal(graph, node, readers)
    if reason:
        return {"action": "kept", "reason": reason}
    for reader in readers:
        graph.absorb(reader, node, inline_output=True)
    graph.remove(node)
    return {"action": "fused", "into": [r.var.name for r in readers], "reason": "computed where it is read"}


def _refusal(graph: Graph, node: Node, readers: list[Node]) -> str:
    """Why `node` cannot be computed inside its readers; empty if it can."""
    if graph.is_output(node.var):
        return "it is a result of the function"
    if not readers:
        return "nobody reads it"
    if sum(division_count(stage.body) for stage in node.kernel.stages) > MOST_DIVISIONS:
        return "its indices are too long to be worked out more than once"
    first = _type(node)
    work = sum(cost(stage.body) for stage in node.kernel.stages)
    for reader in readers:
        if reader.kernel is None:
            return f"{reader.var.name} has no functional form: {reader.reason}"
        if _calls(node) and _calls(reader) + _calls(node) > MOST_CALLS:
            return f"{reader.var.name} calls enough functions per element already"
        second = _type(reader)
        if TABLE_3[first, second].verdict is Verdict.NEVER and movement(node.kernel) is None:
            return f"{first.value} then {second.value} never pays (DNNFusion Table 3)"
        again = _evaluations(reader, node.var) / math.prod(shape_of(node.kernel.outputs[0]))
        if work > CHEAP and (again > 1 or len(readers) > 1):
            return f"{reader.var.name} would evaluate its {work} operations {again * len(readers):g} times"
    if len(readers) > 1 and not _moves_fewer_bytes(node, len(readers)):
        return f"reading its operands in {len(readers)} kernels moves more bytes than storing it"
    return ""


def _evaluations(reader: Node, var) -> int:
    """How often the reader evaluates a load of `var`: once per distinct map and point of every stage."""
    buffer = reader.kernel.inputs[_position(reader, var)]
    total = 0
    for stage in reader.kernel.stages:
        total += len(stage.maps(buffer)) * math.prod(stage.extents.values())
    return total


def _moves_fewer_bytes(node: Node, readers: int) -> bool:
    operands = sum(_bytes(b) for b, a in zip(node.kernel.inputs, node.args, strict=True) if isinstance(a, ir.Var))
    result = _bytes(node.kernel.outputs[0])
    return readers * operands <= operands + (1 + readers) * result + LAUNCH_BYTES


def _bytes(buffer) -> int:
    return math.prod(shape_of(buffer)) * ((buffer.dtype.bits + 7) // 8)

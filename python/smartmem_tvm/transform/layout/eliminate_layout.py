# SPDX-License-Identifier: Apache-2.0
"""EliminateLayout: pure data movements have no kernel; their readers read through an index map."""

from __future__ import annotations

import tvm
from tvm import ir

from ...analysis.classify import quadrant, stage_divisions
from ...ir.graph import Graph, Node, rewrite_graphs, too_wide
from ...ir.index_map import is_identity
from ...ir.kernel import shape_of
from ...ir.movement import movement
from ...tables.action import TABLE_5, Action
from ...tables.fusion_policy import MOST_DIVISIONS

_ELIMINATES_FIRST = (Action.ELIMINATE_FIRST, Action.ELIMINATE_BOTH)


@tvm.transform.module_pass(opt_level=0, name="smartmem.EliminateLayout")
class EliminateLayout:
    """Let every consumer read through the index map of the layout operators in front of it (SmartMem 3.2.1).

    Before::

        a = reshape(x)          # x (2, 256, 4) -> (16, 128)
        b = transpose(a)        # (128, 16)
        c = matmul(b, w)        # sum_k b[i, k] * w[k, j]

    After::

        c = matmul(x, w)        # sum_k x[k // 8, k % 8 * 32 + i // 4, i % 4] * w[k, j]

    The pair of quadrants decides (SmartMem Table 5): where the first operator of a pair is of a Fixed type, it is
    eliminated into the second. Chains compose, identities disappear, and an operator with several readers is composed
    into each of them.

    A movement stays when it

    1. is a graph output (a copy the user asked for; fusion may still let its producer write it directly),
    2. is read by a binding without functional form (opaque PrimFunc, packed call, tuple),
    3. has a composed map so long that storing the tensor is cheaper,
    4. reads so many tensors that its reader would exceed a kernel's number of parameters.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, eliminate)


def eliminate(graph: Graph) -> list[dict]:
    """Rewrite `graph` in place; return one decision for each data movement in it."""
    moved: dict = {}  # variable -> (node, map as text) of the movements that consumers read through
    readers: dict = {}  # variable -> variables of the kernels that read through it
    for node in graph:
        if node.kernel is None or len(node.kernel.outputs) > 1:
            continue
        for producer in _movements_read(node, moved):
            if too_wide(node, producer) or not any(arg.same_as(producer.var) for arg in node.args):
                continue  # in the second case, another movement that was absorbed has made its elements superfluous
            graph.absorb(node, producer, inline_output=True)
            readers.setdefault(producer.var, []).append(node.var.name)
        what = movement(node.kernel)
        if what is not None:
            moved[node.var] = (node, str(what))
    forward_identities(graph)
    for node, _ in reversed(list(moved.values())):
        if node in graph and not graph.readers(node.var) and not graph.is_output(node.var):
            graph.remove(node)
    return [_decision(graph, node, text, readers.get(var, [])) for var, (node, text) in moved.items()]


def _movements_read(node: Node, moved: dict) -> list[Node]:
    found = [moved[a][0] for a in node.args if isinstance(a, ir.Var) and a in moved and not _too_long(moved[a][0])]
    mine = quadrant(node.kernel)
    return [p for p in found if TABLE_5[quadrant(p.kernel), mine] in _ELIMINATES_FIRST]


def _too_long(node: Node) -> bool:
    return stage_divisions(node.kernel.last) > MOST_DIVISIONS


def forward_identities(graph: Graph) -> None:
    """Remove identity maps: a result of the function takes the map's source instead."""
    for node in graph:
        source = _identity_source(node)
        if source is None or not graph.is_output(node.var):
            continue
        origin = graph.producer(source)
        if origin is None or graph.is_output(origin.var) or origin.kernel is None:
            graph.replace_value(node, source, "the result is an input or another result")
            continue
        graph.remove(node)
        graph.rename(origin, node.var)


def _identity_source(node: Node):
    what = movement(node.kernel) if node.kernel is not None else None
    if what is None or what.index_map is None:
        return None
    if not is_identity(what.pieces[0].indices, what.stage.spatial, what.stage.extents):
        return None
    same_shape = shape_of(what.pieces[0].source) == tuple(what.stage.extents[v] for v in what.stage.spatial)
    return node.args[0] if same_shape and isinstance(node.args[0], ir.Var) else None


def _decision(graph: Graph, node: Node, text: str, readers: list[str]) -> dict:
    entry = {"pass": "EliminateLayout", "operator": node.members[-1], "map": text}
    if node not in graph:
        return {**entry, "action": "eliminated", "into": readers}
    if node.kernel is None:
        return {**entry, "action": "eliminated", "into": [], "reason": "identity"}
    if _too_long(node):
        return {**entry, "action": "kept", "reason": "its map is too long to be worth reading through"}
    output = graph.is_output(node.var)
    wide = any(reader.kernel is not None and too_wide(reader, node) for reader in graph.readers(node.var))
    inner = "a reader has as many operands as a kernel takes" if wide else "a reader has no functional form"
    reason = "it is a result of the function" if output else inner
    return {**entry, "action": "kept", "reason": reason}

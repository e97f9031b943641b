# SPDX-License-Identifier: Apache-2.0
"""SelectLayout: every tensor is stored as its readers want it."""

from __future__ import annotations

import tvm
from tvm import relax

from ..analysis.graph import Graph, Node, rewrite_graphs
from ..analysis.kernel import shape_of
from ..analysis.storage import reordered, tensor_demands
from ..planner.storage_order import StorageOrder, as_stored, storage_order


@tvm.transform.module_pass(opt_level=0, name="smartmem.SelectLayout")
class SelectLayout:
    """Choose the storage order of every tensor by the reduction dimensions of its readers (SmartMem 3.2.2).

    Before, with a normalisation over the channels ``c``::

        y[n, c, h, w] = conv(x)
        z = layer_norm(y, axis=c)          # reads with stride h * w

    After::

        y'[n, h, w, c] = conv(x)           # the producer writes what the reader wants
        z = layer_norm(y', axis=c)

    Only the producer's stores and the readers' loads change: there is no kernel for the transition. A tensor stays as
    it is if

    1. it is an input or a result of the function, or made or read by something without loop structure, or in a texture,
    2. no reader reduces along any of its dimensions (Table 6: no search),
    3. the order that it has serves as many reads as the one that would be chosen.

    Parameters
    ----------
    fast_axes : int
        The paper's k: 1 for buffers, 2 for textures.
    """

    def __init__(self, fast_axes: int = 1):
        self.fast_axes = fast_axes

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, lambda graph: select_layout(graph, self.fast_axes))


def select_layout(graph: Graph, fast_axes: int) -> list[dict]:
    """Rewrite `graph` in place; returns one decision for each tensor that somebody wants in another order."""
    log = []
    for node in graph:
        wanted = tensor_demands(graph, node)
        if not wanted or node.kernel.outputs[0].scope() != "global":
            continue
        shape = shape_of(node.kernel.outputs[0])
        now = as_stored(shape, wanted)
        if not now.unserved:
            continue
        chosen = storage_order(shape, wanted, fast_axes)
        better = _reads(chosen) > _reads(now)
        if better:
            _store(graph, node, chosen.order)
        log.append(_decision(node, shape, chosen if better else now, better))
    return log


def _reads(order: StorageOrder) -> int:
    return sum(demand.elements for demand in order.served)


def _store(graph: Graph, node: Node, order: tuple[int, ...]) -> None:
    """Let `node` write, and all its readers read, its tensor in another order."""
    readers = graph.readers(node.var)
    node.kernel, buffer = reordered(node.kernel, node.kernel.outputs[0], order)
    var = relax.DataflowVar(node.var.name, relax.TensorType(list(buffer.shape), node.var.ty.dtype))
    for reader in readers:
        for position, arg in enumerate(reader.args):
            if arg.same_as(node.var):
                reader.kernel, _ = reordered(reader.kernel, reader.kernel.inputs[position], order)
    graph.rename(node, var)


def _decision(node: Node, shape: tuple[int, ...], order: StorageOrder, changed: bool) -> dict:
    missed = ", ".join(f"{d.reader} along {sorted(d.dims)}" for d in order.unserved)
    return {
        "pass": "SelectLayout",
        "tensor": node.var.name,
        "shape": list(shape),
        "order": list(order.order),
        "fast": list(order.fast),
        "action": "stored in this order" if changed else "kept",
        "unserved": [{"reader": d.reader, "dims": sorted(d.dims), "elements": d.elements} for d in order.unserved],
        **({"reason": f"no order serves all readers; not served: {missed}"} if missed else {}),
    }

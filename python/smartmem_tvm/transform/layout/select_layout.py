# SPDX-License-Identifier: Apache-2.0
"""SelectLayout: every tensor is stored as its readers want it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import tvm
from tvm import ir, tirx

from ...analysis.demands import first_step, reader_demands, search, tensor_demands, why_fixed
from ...ir.byte_numbers import RANGES
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.kernel import emit, shape_of
from ...ir.storage import along_result, beside_results, in_order, store_as
from ...ir.strength_reduction import Simplifier
from ...planner.storage_order import (
    MOVED,
    Demand,
    StorageOrder,
    as_stored,
    innermost,
    order_decision,
    storage_order,
    with_innermost,
)
from ...planner.texture_choice import Accepts, slower


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

    1. it is an input or a result of the function, a call without loop structure writes or reads it, or it is in a
       texture,
    2. Table 6 has no search for the pairs of its producer and its readers (`tables.layout_policy`), or no reader
       reduces along any of its dimensions,
    3. its present order serves as many reads as the order that would be chosen,
    4. its kernels would be no faster in that order (`accepts`). The paper's rule does not ask this; but a schedule
       follows the order of the tensor that it writes, and so may read its operands with large strides.

    The module carries the decision of each tensor, with its reason.

    Parameters
    ----------
    fast_axes : int
        The paper's k: 1 for buffers, 2 for textures.
    products : callable, optional
        Node -> whether its kernel is a product whose schedule gains by the order of its operands. If given, the paper's
        rule is limited, because other kernels do not gain by it where caches are large. A tensor stays as it is if the
        window of another kernel slides over it, if its own kernel is a product and no product reduces along one of its
        dimensions, or if its own kernel is no product and reads along another dimension. A product's result that no
        reduction reads, such as a branch that is added, is stored in the order of the sum of both branches.
    accepts : callable, optional
        See `Accepts`; a `TextureTrial` of a device whose times are modelled.
    """

    def __init__(
        self,
        fast_axes: int = 1,
        products: Callable[[Node], bool] | None = None,
        accepts: Accepts | None = None,
    ):
        self.fast_axes, self.products, self.accepts = fast_axes, products, accepts

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, lambda graph: select_layout(graph, self.fast_axes, self.products, self.accepts))


def select_layout(
    graph: Graph, fast_axes: int, products: Callable[[Node], bool] | None = None, accepts: Accepts | None = None
) -> list[dict]:
    """Rewrite `graph` in place; return one decision for each tensor that a kernel writes to a buffer."""
    mine = [n for n in graph if n.kernel is not None and n.kernel.outputs[0].scope() == "global"]
    asked = [_asked(graph, node, products) for node in mine]  # before any tensor moves: layers still share kernels
    log = [_select(graph, *each, fast_axes, products, accepts) for each in zip(mine, asked, strict=True)]
    if products is not None:  # readers first: a tensor that follows its readers may itself be followed
        moved = {entry["tensor"] for entry in log if entry["action"] == MOVED}
        left = [node for node in reversed(mine) if node.var.name not in moved and products(node)]
        followed = {entry["tensor"]: entry for node in left if (entry := _follow(graph, node)) is not None}
        log = [followed.get(entry["tensor"], entry) for entry in log]
    return log


def _follow(graph: Graph, node: Node) -> dict | None:
    """Store a product's result that no reduction reads in the order of its readers' results; None if these disagree."""
    if why_fixed(graph, node.var) is not None:
        return None
    shape, wanted = shape_of(node.kernel.outputs[0]), set()
    for reader in graph.readers(node.var):
        buffers = [b for b, arg in zip(reader.kernel.inputs, reader.args, strict=True) if arg.same_as(node.var)]
        beside = [beside_results(reader.kernel, buffer) for buffer in buffers]
        wanted |= {next((dim for dim in each if shape[dim] > 1), None) for each in beside}
        demands = [each for each in reader_demands(reader, node.var) if not (each.slid and _of_bytes(reader))]
        wanted |= {dim for demand in demands for dim in (None, *demand.dims)}
    if len(wanted) != 1 or None in wanted or wanted == {innermost(shape)}:
        return None
    order = with_innermost(len(shape), wanted.pop())
    store_as(graph, node, order)
    reason = "its readers store their results so"
    stored = StorageOrder(order, order[-1:], (), ())
    return order_decision("SelectLayout", node.var.name, shape, stored, True, reason)


@dataclass(frozen=True)
class _Asked:
    """The demands of a tensor's readers, Table 6's `cells` in words, and why its order cannot change (`unfit`)."""

    wanted: list[Demand]
    unfit: str | None
    cells: str


def _asked(graph: Graph, node: Node, products: Callable[[Node], bool] | None) -> _Asked:
    unfit = why_fixed(graph, node.var) or (_unfit(graph, node, products) if products is not None else None)
    wanted = tensor_demands(graph, node) if unfit is None else []
    if products is not None:  # a product reads a matrix along one dimension, even if its window slides along others
        wanted = [replace(each, dims=each.dims - each.slid or each.dims) for each in wanted]
    return _Asked(wanted, unfit, _table_6(graph, node, wanted) if unfit is None else "")


def _select(
    graph: Graph,
    node: Node,
    asked: _Asked,
    fast_axes: int,
    products: Callable[[Node], bool] | None,
    accepts: Accepts | None,
) -> dict:
    shape, unfit = shape_of(node.kernel.outputs[0]), asked.unfit
    now = as_stored(shape, asked.wanted)
    chosen = storage_order(shape, asked.wanted, fast_axes)
    better = _reads(chosen) > _reads(now)
    # Instructions read bytes along their terms only: gathered one by one they take longer than what a kernel loses.
    may = products is None or products(node) or _of_bytes(node) or _walks_along(node, chosen.fast[0])
    if better and not may:
        better, unfit = False, "its kernel reads along another dimension, and is no product by matrix instructions"
    if better and accepts is not None:
        unfit = _slower(graph, node, chosen, accepts)
        better = unfit is None
    order = chosen if better else now
    reason = unfit or _why(order) or asked.cells
    name = node.var.name
    if better:
        store_as(graph, node, chosen.order)
    return order_decision("SelectLayout", name, shape, order, better, reason)


def _slower(graph: Graph, node: Node, chosen: StorageOrder, accepts: Accepts) -> str | None:
    """Return why kernels should keep the present order: their times, or a kernel that cannot be scheduled."""
    kernels = in_order(graph, node, chosen.order)
    before = {each.var.name: accepts(emit(each.kernel, each.attrs)) for each in kernels}
    after = {each.var.name: accepts(emit(kernel, each.attrs)) for each, kernel in kernels.items()}
    problem = next((f"{name}: {trial.problem}" for name, trial in after.items() if trial.problem is not None), None)
    if problem is not None:
        return f"no rule schedules its kernels in another order; {problem}"
    times = slower(before, after, ("as it is", f"in the order {list(chosen.order)}"))
    return times and f"its kernels are no faster in another order; {times}"


def _unfit(graph: Graph, node: Node, products: Callable[[Node], bool]) -> str | None:
    """Return why the order of a tensor stays; None if it may change."""
    readers = graph.readers(node.var)
    if products(node) and not any(products(reader) and reader_demands(reader, node.var) for reader in readers):
        return "no product by matrix instructions reduces along one of its dimensions"
    others = (reader for reader in readers if not products(reader))
    window = next((r for r in others if any(demand.slid for demand in reader_demands(r, node.var))), None)
    return None if window is None else f"the window of {window.var.name} slides over it"


def _walks_along(node: Node, dim: int) -> bool:
    """Whether steps along a dimension of a kernel's result read contiguously from the kernel's largest operand."""
    store = node.kernel.last.body
    at = store.indices[dim] if isinstance(store, tirx.BufferStore) else None
    if not isinstance(at, ir.Var) or at not in node.kernel.last.extents:
        return False
    along = along_result(node.kernel, at)
    given = [b for b, arg in zip(node.kernel.inputs, node.args, strict=True) if isinstance(arg, ir.Var)]
    read = [(s, load) for s in along for load in s.loads if any(load.source.same_as(each) for each in given)]
    stage, load = max(read, key=lambda each: prod(shape_of(each[1].source)), default=(None, None))
    inner = innermost(shape_of(load.source)) if load is not None else None
    return inner is not None and first_step(load.indices[inner], along[stage], Simplifier(stage.extents)) == 1


def _of_bytes(node: Node) -> bool:
    return str(node.kernel.outputs[0].dtype) in RANGES


def _why(order: StorageOrder) -> str | None:
    missed = ", ".join(f"{d.reader} along {sorted(d.dims)}" for d in order.unserved)
    return f"no order serves all readers, and none is stored twice; not served: {missed}" if missed else None


def _table_6(graph: Graph, node: Node, wanted: list[Demand]) -> str:
    """Say, for the log, the policy that the paper's table has for the edges to the readers, and its outcome."""
    cells = {search(node, reader).value for reader in graph.readers(node.var)}
    found = "it serves all readers" if wanted else "no reader reduces along one of its dimensions"
    return f"{found} (Table 6: {', '.join(sorted(cells))})"


def _reads(order: StorageOrder) -> int:
    return sum(demand.elements for demand in order.served)

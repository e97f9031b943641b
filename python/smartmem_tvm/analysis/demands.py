# SPDX-License-Identifier: Apache-2.0
"""Demands of a kernel on the layout of its inputs: memory contiguous along the reduced dimensions (SmartMem 3.2.2)."""

from __future__ import annotations

from math import prod
from weakref import WeakKeyDictionary

from tvm import ir, tirx

from ..ir.graph import Graph, Node
from ..ir.index_map import variables
from ..ir.kernel import Kernel, Stage, shape_of, substitute
from ..ir.strength_reduction import Simplifier
from ..planner.storage_order import Demand
from ..planner.texture_form import TEXEL
from ..tables.layout_policy import TABLE_6, Search
from .classify import quadrant

# Layers of a network share kernels, and each tensor that a kernel reads needs its demands. Entries live as long as
# their kernel.
_known: WeakKeyDictionary[Kernel, dict] = WeakKeyDictionary()


def demands(kernel: Kernel, name: str) -> dict:
    """Return the demands of a kernel, called `name`, on each of its inputs (SmartMem 3.2.2).

    A reduction demands the dimensions along which it steps one element at a time. A dimension whose index also depends
    on the position of the result counts in two cases: if the reduction runs through it in blocks of at least a texel
    (the rows of a patch), or if the reduction has no other dimension (the channels of a group, the rows of a window).
    Element-wise stages between an input and the reduction pass the demand on.

    Returns
    -------
    dict
        Input buffer -> list of `Demand`; inputs without demands are missing.
    """
    if kernel not in _known:
        _known[kernel] = _wanted(kernel)
    wanted = _known[kernel]
    return {
        buffer: [Demand(dims, count, name, slid) for (dims, slid), count in wanted[buffer].items()]
        for buffer in kernel.inputs
        if buffer in wanted
    }


def _wanted(kernel: Kernel) -> dict:
    """Return buffer -> (demanded dimensions, those that a window slides along) -> number of points that demand them."""
    wanted: dict = {}
    for stage in reversed(kernel.stages):
        for load in stage.loads:
            for dims, slid, count in _direct(stage, load) + _passed(stage, load, wanted):
                found = wanted.setdefault(load.source, {})
                found[dims, slid] = max(found.get((dims, slid), 0), count)
    return wanted


def tensor_demands(graph: Graph, node: Node) -> list[Demand]:
    """Return the demands of the readers of a node's tensor; none if its order cannot be chosen."""
    if why_fixed(graph, node.var) is not None:
        return []
    asked = [each for each in graph.readers(node.var) if search(node, each) is not Search.NONE]
    return [demand for reader in asked for demand in reader_demands(reader, node.var)]


def search(producer: Node, reader: Node) -> Search:
    """Return the layouts that SmartMem's Table 6 searches for an edge between two kernels."""
    return TABLE_6[quadrant(producer.kernel), quadrant(reader.kernel)].search


def reader_demands(reader: Node, var) -> list[Demand]:
    """Return the demands of one node with a kernel on a tensor that it reads."""
    wanted = demands(reader.kernel, reader.var.name)
    pairs = zip(reader.kernel.inputs, reader.args, strict=True)
    return [demand for buffer, arg in pairs if arg.same_as(var) for demand in wanted.get(buffer, [])]


def why_fixed(graph: Graph, var) -> str | None:
    """Return the reason why the order of a tensor cannot be chosen, None if it can."""
    producer = graph.producer(var)
    if producer is None:
        return "an input of the model keeps the user's order"
    if graph.is_output(var):
        return "a result of the model keeps the user's order"
    if producer.kernel is None or any(reader.kernel is None for reader in graph.readers(var)):
        return "it is made or read by something without loop structure"
    return None


def _direct(stage: Stage, load: ir.TensorLoad) -> list[tuple[frozenset[int], frozenset[int], int]]:
    pure, blocks, shared, patches = set(), set(), set(), set()
    shape, simplifier = shape_of(load.source), Simplifier(stage.extents)
    for var in stage.reduction:
        for dim, at in enumerate(load.indices):
            if shape[dim] > 1 and stage.extents[var] > 1 and var in variables(at) and _moves(at, var, simplifier):
                alone = all(other in stage.reduction for other in variables(at))
                in_blocks = not alone and _in_blocks(at, var, stage, simplifier)
                (pure if alone else blocks if in_blocks else shared).add(dim)
                if in_blocks and stage.extents[var] >= TEXEL:
                    patches.add(dim)
    # A reduction with dimensions of its own also demands patches that fill a texel: the results lie along these.
    dims, slid = (pure | patches, patches - pure) if pure else (blocks | shared, shared - blocks)
    return [(frozenset(dims), frozenset(slid), prod(stage.extents.values()))] if dims else []


def _in_blocks(at, var, stage: Stage, simplifier: Simplifier) -> bool:
    """Whether the position of the result only chooses a block for `var` to run through: the channels of a group."""
    within = simplifier.index(tirx.floormod(at, tirx.const(stage.extents[var], at.ty.dtype)))
    return all(other in stage.reduction for other in variables(within))


def _moves(at, var, simplifier: Simplifier) -> bool:
    """Whether the first step of `var` changes the index; for the leading digit of a split axis it does not."""
    return first_step(at, var, simplifier) != 0


def first_step(at, var, simplifier: Simplifier) -> int | None:
    """Return the growth of an index as `var` goes from 0 to 1; None if it depends on other variables."""
    zero, one = tirx.const(0, var.ty.dtype), tirx.const(1, var.ty.dtype)
    step = simplifier.index(substitute(at, {var: one}) - substitute(at, {var: zero}))
    return int(step) if isinstance(step, tirx.IntImm) else None


def _passed(stage: Stage, load: ir.TensorLoad, wanted: dict) -> list[tuple[frozenset[int], frozenset[int], int]]:
    """Return the demands on the result of an element-wise stage as demands on the tensor that it loads."""
    if not stage.is_pointwise:
        return []
    found = []
    shape = shape_of(load.source)

    def read(dims: frozenset[int]) -> frozenset[int]:
        along = {stage.spatial[dim] for dim in dims}
        return frozenset(d for d, at in enumerate(load.indices) if shape[d] > 1 and along & set(variables(at)))

    for (dims, slid), count in wanted.get(stage.outputs[0], {}).items():
        if read(dims):
            found.append((read(dims), read(slid) - read(dims - slid), count))
    return found

# SPDX-License-Identifier: Apache-2.0
"""ChannelsInnermost: tensors between convolutions are stored in NHWC order, on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import ir, tirx

from ...analysis.demands import why_fixed
from ...analysis.position_axes import position_axes
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.index_map import variables
from ...ir.kernel import Stage, shape_of, substitute
from ...ir.storage import store_as
from ...ir.strength_reduction import Simplifier
from ...planner.storage_order import MOVED, StorageOrder, innermost, order_decision, with_innermost, with_outermost

_LEAST = 8  # channels: fewer of them do not fill a vector, and rows of pixels are longer


@tvm.transform.module_pass(opt_level=0, name="smartmem.ChannelsInnermost")
class ChannelsInnermost:
    """Store the tensors between convolutions with their channels innermost, for a CPU.

    Before::

        y[n, c, h, w] = conv(x);  z[n, c, h, w] = conv(relu(y) + x)

    After::

        y'[n, h, w, c] = conv(x);  z'[n, h, w, c] = conv(relu(y') + x)

    In a function that takes a length, the dimension with its positions is the outermost one, as in ``y'[n, w, h, c]``
    for a picture of an open width: what lies behind the length is then one piece of memory, and loops over pixels end
    in front of it.

    A product then reads and writes each pixel's channels contiguously. In NCHW order it reads as many cache lines as
    there are channels, far apart, and no hardware prefetcher follows them. Depthwise windows, pools and element-wise
    operators have the channels as SIMD lanes.

    Products with weights show which dimensions are channels: the dimension of their data that they sum over, and the
    one of their results that only the weights have. All dimensions that a kernel iterates together with one of these
    are channels too, throughout the graph: those of branches that are added, those of a depthwise window's input. A
    tensor stays as it is

    1. if it is an input or a result of the function, or a call without loop structure writes or reads it,
    2. if products have channels in none of its dimensions, in several (tokens that are mixed as channels are), or in
       the innermost one,
    3. if it has fewer channels than fill a vector,
    4. if a kernel iterates its channels in no fixed steps (a shuffle), sums part of them together with pixels (a group
       norm), multiplies and sums the pixels of each channel, which then fill a row (a fused norm of each channel), or
       multiplies matrices of each channel. All tensors with the same channels then stay as well.

    The module carries the decision, with its reason, for each tensor whose channels are not innermost.

    Parameters
    ----------
    windows : bool
        Whether convolutions with overlapping windows are as fast in this order. If they are not, as with the tiles of
        bfloat16, a function with such a convolution stays as it is.
    """

    def __init__(self, windows: bool = True):
        self.windows = windows

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, lambda graph: channels_innermost(graph, self.windows))


def channels_innermost(graph: Graph, windows: bool = True) -> list[dict]:
    """Rewrite `graph` in place; return one decision for each tensor that a kernel writes."""
    nodes = [node for node in graph if node.kernel is not None and len(node.kernel.outputs) == 1]
    if not windows and any(_has_windows(stage, set(node.constants)) for node in nodes for stage in node.kernel.stages):
        return []
    dimensions = _Dimensions()
    for node in nodes:
        _look_at(node, dimensions)
    log, positions = [], position_axes(graph.function, nodes)
    for node in nodes:
        shape = shape_of(node.kernel.outputs[0])
        found = [dim for dim, size in enumerate(shape) if size > 1 and dimensions[node.var, dim].channels]
        if found in ([], [innermost(shape)]):
            continue  # no dimension to move, so no decision to record
        reason = _why_kept(graph, node, shape, found, dimensions)
        order = tuple(range(len(shape))) if reason else with_innermost(len(shape), found[0])
        if not reason and len(positions.get(node.var, ())) == 1:
            order = with_outermost(order, shape, *positions[node.var])
        stored, why = StorageOrder(order, order[-1:], (), ()), reason or "products sum up its channels, or make them"
        log.append((node, order_decision("ChannelsInnermost", node.var.name, shape, stored, not reason, why)))
    for node, entry in log:
        if entry["action"] == MOVED:
            store_as(graph, node, tuple(entry["order"]))
    return [entry for _, entry in log]


def _why_kept(graph: Graph, node: Node, shape: tuple[int, ...], found: list[int], dimensions: _Dimensions) -> str:
    """Return why a tensor with channels in dimensions `found` stays as it is; empty if it moves."""
    fixed = why_fixed(graph, node.var)
    if fixed is not None:
        return fixed
    if len(found) > 1:
        return "products see channels in several of its dimensions"
    if shape[found[0]] < _LEAST:
        return f"it has {shape[found[0]]} channels only"
    return dimensions[node.var, found[0]].refused


@dataclass(eq=False)
class _Class:
    """Dimensions that kernels iterate together: whether they are channels, and why they stay where they are."""

    channels: bool = False
    refused: str = ""
    parent: _Class | None = field(default=None, repr=False)


class _Dimensions:
    """Classes of the dimensions of tensors, by (tensor, dimension)."""

    def __init__(self):
        self._known: dict[tuple, _Class] = {}

    def __getitem__(self, key: tuple) -> _Class:
        found = self._known.setdefault(key, _Class())
        while found.parent is not None:
            found = found.parent
        return found

    def join(self, first: tuple, second: tuple) -> None:
        """Merge the classes of two dimensions."""
        one, other = self[first], self[second]
        if one is not other:
            other.parent = one
            one.channels |= other.channels
            one.refused = one.refused or other.refused


def _look_at(node: Node, dimensions: _Dimensions) -> None:
    kernel = node.kernel
    names = {b: arg for b, arg in zip(kernel.inputs, node.args, strict=True) if isinstance(arg, ir.Var)}
    names[kernel.outputs[0]] = node.var
    constants = set(node.constants)
    multiplied = False
    wide = sum(size > 1 for size in shape_of(kernel.outputs[0])) > 1
    for stage in kernel.stages:
        simplifier, walked = Simplifier(stage.extents), {}
        channels = _channels(stage, constants)
        by_channel = wide and stage.reduction and not channels and multiplied
        multiplied |= bool(channels)
        matrices = _of_matrices(stage, constants)
        for buffer, dim, at in _accesses(stage):
            key = (names.get(buffer, buffer), dim)
            mine = [var for var in variables(at) if stage.extents.get(var, 1) > 1]
            steps = {var: _step(at, var, simplifier) for var in mine}
            if mine and 1 not in steps.values():
                dimensions[key].refused = f"{node.var.name} walks through its channels in no fixed steps"
            if _sums_up_a_part(stage, mine, channels):
                dimensions[key].refused = f"{node.var.name} sums up groups of its channels"
            if len(mine) == 1 and mine[0] in matrices:
                dimensions[key].refused = f"{node.var.name} multiplies matrices of each channel"
            if by_channel and set(mine) & set(stage.spatial):
                dimensions[key].refused = f"{node.var.name} multiplies, and sums up places channel by channel"
            if buffer in constants:
                continue
            for var in mine:
                if steps[var] == 1 and (len(mine) == 1 or (var in channels and None in steps.values())):
                    dimensions.join(walked.setdefault(var, key), key)
                    dimensions[key].channels |= var in channels


def _accesses(stage: Stage) -> Iterator[tuple]:
    """Yield (buffer, dimension, index) of all loads and stores of a stage."""
    store = stage.body
    if isinstance(store, tirx.BufferStore):
        yield from ((store.buffer, dim, at) for dim, at in enumerate(store.indices))
    for load in stage.loads:
        yield from ((load.source, dim, at) for dim, at in enumerate(load.indices))


def _channels(stage: Stage, constants: set) -> set:
    """Return the iterators over channels: reductions that weights and data share, and those that only weights have."""
    in_weights = {
        var for load in stage.loads if load.source in constants for at in load.indices for var in variables(at)
    }
    summed = in_weights & set(stage.reduction)
    if not summed:
        return set()
    places = [at for load in _data(stage, constants) for at in load.indices]
    in_data = {var for at in places for var in variables(at)}
    slid = {var for at in places if _slides(stage, at) for var in variables(at)}
    return (summed & in_data - slid) | ((in_weights & set(stage.spatial)) - in_data)


def _of_matrices(stage: Stage, constants: set) -> set:
    """Return the batch iterators of a product of two tensors: result iterators that both factors share."""
    distinct: list = []  # `x * sigmoid(x)` is a product of one tensor with itself
    for load in _data(stage, constants):
        if not any(tvm_ffi.structural_equal(load, each) for each in distinct):
            distinct.append(load)
    used = [{var for at in load.indices for var in variables(at)} for load in distinct]
    summed = [each for each in used if any(var in stage.reduction and stage.extents[var] > 1 for var in each)]
    return set.intersection(*summed) & set(stage.spatial) if len(summed) > 1 else set()


def _data(stage: Stage, constants: set) -> list:
    """Return the loads of data: neither of weights nor of the stage's accumulator."""
    own = stage.outputs
    return [x for x in stage.loads if x.source not in constants and not any(x.source.same_as(each) for each in own)]


def _has_windows(stage: Stage, constants: set) -> bool:
    """Whether a stage sums channels over windows that overlap."""
    if not _channels(stage, constants):
        return False
    simplifier = Simplifier(stage.extents)
    for load in _data(stage, constants):
        for at in (each for each in load.indices if _slides(stage, each)):
            steps = [_step(at, var, simplifier) or 0 for var in variables(at) if var in stage.spatial]
            if max(stage.extents[var] for var in variables(at) if var in stage.reduction) > max(steps):
                return True
    return False


def _slides(stage: Stage, at) -> bool:
    """Whether an index is a place in a window: it depends on result iterators and on reduction iterators."""
    simplifier, mine = Simplifier(stage.extents), variables(at)
    grows = [var for var in mine if var in stage.spatial and _step(at, var, simplifier)]
    return bool(grows) and any(var in stage.reduction for var in mine)


def _sums_up_a_part(stage: Stage, mine: list, channels: set) -> bool:
    """Whether the reduction runs through a block of channels that the result selects, beside other reductions."""
    inside = [var for var in mine if var in stage.reduction and var not in channels]
    others = [var for var in stage.reduction if stage.extents[var] > 1 and var not in inside]
    return bool(inside) and len(inside) < len(mine) and bool(others) and not channels


def _step(at, var, simplifier: Simplifier) -> int | None:
    """Return the step of an index along an iterator; None if it depends on other iterators."""
    more = simplifier.index(substitute(at, {var: var + tirx.const(1, var.ty.dtype)}) - at)
    return int(more) if isinstance(more, tirx.IntImm) else None

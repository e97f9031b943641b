# SPDX-License-Identifier: Apache-2.0
"""AlignWindows: a window reads its operands in the order in which it writes its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from math import prod

import numpy as np
import tvm
from tvm import ir, tirx

from ...ir.exchange_constants import Exchange, constant_operands, exchange
from ...ir.index_map import variables
from ...ir.kernel import CONSTANTS, Kernel, Opaque, Stage, parse, shape_of
from ...ir.storage import along_result, reordered
from ...ir.walk import loads
from ...planner.storage_order import innermost, with_innermost
from ..core.reduction import combiner_of
from ..core.rule import is_open, known_target
from .channelwise_window import channelwise_window_of, group_of
from .params import CpuParams

_SHORTEST = 4  # contiguous elements. Chosen: fewer fill no vector of any target, and are not worth another order


@tvm.transform.module_pass(opt_level=0, name="smartmem.AlignWindows")
class AlignWindows:
    """Store what kernels keep for themselves, and weights of depthwise convolutions, as their results are stored.

    Before, where the result lies along the channels, as tokens do::

        pad[c, y, x] = in[y - 1, x - 1, c];   acc[y, x, c] += pad[c, y + ky, x + kx] * w[c, ky, kx]

    After::

        pad[y, x, c] = in[y - 1, x - 1, c];   acc[y, x, c] += pad[y + ky, x + kx, c] * w[ky, kx, c]

    A vector of results then reads vectors. Otherwise each element is gathered by itself, which took half of the time of
    SMT-S. The pass brings weights into the new order at compile time, also the matrix of a product with one vector.
    Where a result sums up the channels of its group, and a group is no longer than a vector, the dimension of the
    group's channels becomes innermost. A padded copy in front of a product along the channels is stored in the order of
    its input; sums are stored in the order of their epilogue's result.

    Refuses (leaves as it is) a reduction with an operand that does not move along the innermost dimension of the
    result, such as a matmul, whose operands are packed. It also refuses an operand that comes from outside of the
    kernel in another order: `ChannelsInnermost`, `SelectLayout` and `PlanLayout` change those.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every unscheduled PrimFunc of `mod`; others are left alone."""
        constants, found = constant_operands(mod), {}
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or not is_open(func):
                continue
            known = constants.get(gvar, ()) or [int(place) for place in (func.attrs or {}).get(CONSTANTS) or ()]
            try:
                aligned = _aligned(parse(func), known, _lanes_of(func))
            except Opaque:
                continue
            if aligned is not None:
                found[gvar] = aligned
        return exchange(mod, found)


def _lanes_of(func: tirx.PrimFunc) -> int:
    target = known_target(func)
    return (CpuParams.of(target) if target is not None else CpuParams()).lanes


def _aligned(kernel: Kernel, constants: Collection[int], lanes: int) -> Exchange | None:
    """Return the kernel with its windows' operands in the order of the result; None if nothing changes."""
    orders: dict = {}
    for stage, var in (*_walks(kernel), *_lanes(kernel)):
        orders |= _wanted(kernel, stage, var, constants, lanes) or {}
    orders |= {copy: order for copy, order in (*_copies(kernel), *_sums(kernel)) if copy not in orders}
    if not orders:
        return None
    forms = {}
    for buffer, order in orders.items():
        place = next((n for n, each in enumerate(kernel.inputs) if each.same_as(buffer)), None)
        if place is not None:
            forms[place] = partial(np.transpose, axes=order)
        kernel, _ = reordered(kernel, buffer, order)
    return Exchange(kernel, forms)


def _walks(kernel: Kernel) -> list[tuple[Stage, ir.Var]]:
    """Return the reductions, each with the iterator along which the kernel's result is contiguous."""
    store = kernel.last.body
    if len(kernel.outputs) != 1 or not isinstance(store, tirx.BufferStore):
        return []
    inner = [at for at, size in zip(store.indices, shape_of(store.buffer), strict=True) if size > 1]
    if not inner or inner[-1] not in kernel.last.spatial:
        return []
    along = along_result(kernel, inner[-1])
    return [(stage, var) for stage, var in along.items() if stage.reduction and stage.extents[var] >= _SHORTEST]


def _copies(kernel: Kernel) -> list[tuple]:
    """Return copies that only reductions read, with the order in which most of their input is stored.

    Copies that are read along the contiguous dimension of the kernel's result are left out.
    """
    walked, found = {var for _, var in _walks(kernel)}, []
    for stage in kernel.stages[:-1] if walked else ():
        buffer = stage.outputs[0]
        readers = kernel.readers(buffer)
        if not stage.is_pointwise or len(stage.outputs) > 1 or not all(reader.reduction for reader in readers):
            continue
        read: Counter = Counter()
        for load in stage.loads:
            shape = shape_of(load.source)
            inner = innermost(shape)  # None: it is a single number
            inside = () if inner is None else variables(load.indices[inner])
            read[inside[0] if len(inside) == 1 else None] += prod(shape)
        along = max(read, key=read.__getitem__, default=None)
        dim = next((dim for dim, place in enumerate(stage.body.indices) if place.same_as(along)), None)
        where = [load.indices for reader in readers for load in reader.loads if load.source.same_as(buffer)]
        crossed = any(walked & set(variables(place)) for indices in where for place in indices)
        shape = shape_of(buffer)
        if dim not in (None, innermost(shape)) and not crossed:
            found.append((buffer, with_innermost(len(shape), dim)))
    return found


def _sums(kernel: Kernel) -> list[tuple]:
    """Return sums, and intermediates computed from them element by element, with the order of the result."""
    store, found = kernel.last.body, []
    if not isinstance(store, tirx.BufferStore) or len(kernel.outputs) != 1:
        return found
    ways = [along_result(kernel, at) if at in kernel.last.spatial else {} for at in store.indices]
    for stage in (each for each in kernel.stages[:-1] if isinstance(each.body, tirx.BufferStore)):
        places = {}  # dimension -> dimension of the result
        for dim, at in enumerate(stage.body.indices):
            places[dim] = next((n for n, way in enumerate(ways) if stage in way and way[stage].same_as(at)), None)
        moving = [dim for dim, size in enumerate(shape_of(stage.outputs[0])) if size > 1]
        if any(places[dim] is None for dim in moving):
            continue
        moved = sorted(moving, key=places.__getitem__)
        if moved != moving:
            found.append((stage.outputs[0], (*(dim for dim in places if dim not in moving), *moved)))
    return found


def _lanes(kernel: Kernel) -> list[tuple[Stage, ir.Var]]:
    """Return the depthwise window over tokens that writes planes, with its channels, which are the SIMD lanes.

    The result is not contiguous along these channels.
    """
    window = channelwise_window_of(kernel)
    if window is None or window.channel is None:
        return []
    return [(stage, window.channel) for stage in kernel.stages if stage.reduction and window.channel in stage.spatial]


def _wanted(kernel: Kernel, stage: Stage, var, constants: Collection[int], lanes: int) -> dict | None:
    """Return the operands of a reduction that are stored in another order, with the order that they should have.

    The result is None if some operand does not move along `var`, or its order cannot change.
    """
    parts = combiner_of(stage)
    if parts is None:
        return None
    orders: dict = {}
    alone = all(each is var or each.same_as(var) or stage.extents[each] == 1 for each in stage.spatial)
    for load in loads(parts[1]):
        shape = shape_of(load.source)
        dims = [dim for dim, at in enumerate(load.indices) if var in variables(at)]
        if not dims and alone:
            continue  # the vector of a matrix-vector product
        group = group_of(load, stage.reduction, stage.extents)
        grouped = group is not None and group.size <= lanes and group.dim in dims
        if len(dims) != 1 or not (grouped or load.indices[dims[0]].same_as(var)):
            return None
        if dims[0] == innermost(shape):
            continue
        if not _may_change(kernel, load.source, constants):
            return None
        orders[load.source] = with_innermost(len(shape), dims[0])
    return orders


def _may_change(kernel: Kernel, buffer, constants: Collection[int]) -> bool:
    """Whether a tensor is an intermediate that element-wise stages write, or a constant."""
    if any(buffer.same_as(each) for each in kernel.intermediates):
        makers = [stage for stage in kernel.stages if any(out.same_as(buffer) for out in stage.outputs)]
        return all(stage.is_pointwise for stage in makers)
    return any(buffer.same_as(kernel.inputs[place]) for place in constants)

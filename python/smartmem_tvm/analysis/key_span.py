# SPDX-License-Identifier: Apache-2.0
"""Attention over a part of a cache: the keys from the first to the last one that a mask lets through.

    span = keys up to the last one that a row sees, keys from the first one that a row sees

`span_kernel` counts both. `part_of` is attention over as many keys as a length, and `moved` lets a loop nest of it read
them from another place than the first row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvm import ir, tirx

from .._tvm import mapped
from ..ir.index_map import variables
from ..ir.kernel import Kernel, Opaque, Stage
from ..ir.walk import collect, loads
from .key_axis import UNSEEN, Mask

_ENDS = 2  # by definition: the last key that is seen, and the first


def span_kernel(mask: Mask) -> Kernel:
    """Return the kernel that counts the keys between the ends of a cache and what rows see.

    Its inputs are the tensors that the mask reads. Its output is two int64 numbers: how many keys there are up to the
    last one that a row sees, and how many from the first one that a row sees to the end of the cache. Where a row sees
    none, both are all.
    """
    key, extents = mask.key, mask.stage.extents
    rows = [var for var in variables(mask.value) if var in extents and not var.same_as(key)]
    dtype, count = key.ty.dtype, extents[key]
    end = tirx.Var("end", dtype)
    sizes = {end: _ENDS} | ({var: extents[var] for var in rows} or {tirx.Var("row", dtype): 1})
    most = tirx.decl_buffer([tirx.const(each, dtype) for each in sizes.values()], "int64", "most")
    span = tirx.decl_buffer([tirx.const(_ENDS, dtype)], "int64", "span")
    zero, every, at = tirx.const(0, "int64"), tirx.const(count, "int64"), list(sizes)
    place, side = (tirx.Cast("int64", var) if str(dtype) != "int64" else var for var in (key, end))
    step = tirx.const(1, "int64") - side * 2
    there = place * step + (side * (every - 1) + 1)  # a choice by `end` would take a loop over keys its vectors
    found = tirx.Select(mask.value > tirx.const(UNSEEN, "float32"), there, zero)
    first = Stage(
        "most",
        (*(_iter(var, size, True) for var, size in sizes.items()), _iter(key, count, False)),
        tirx.BufferStore(most, tirx.max(most[tuple(at)], found), at),
        tirx.BufferStore(most, zero, at),
    )
    others = {tirx.Var(var.name, dtype): size for var, size in sizes.items()}
    counted, result = most[tuple(others)], next(iter(others))
    second = Stage(
        "span",
        tuple(_iter(var, size, var.same_as(result)) for var, size in others.items()),
        tirx.BufferStore(span, tirx.max(span[result], tirx.Select(counted < 1, every, counted)), [result]),
        tirx.BufferStore(span, zero, [result]),
    )
    inputs = tuple(dict.fromkeys(load.source for load in loads(mask.value)))
    return Kernel(inputs, (span,), (first, second))


def _iter(var, size: int, spatial: bool) -> tirx.IterVar:
    kind = tirx.IterVar.DataPar if spatial else tirx.IterVar.CommReduce
    return tirx.IterVar(ir.Range(tirx.const(0, var.ty.dtype), tirx.const(size, var.ty.dtype)), var, kind)


def part_of(kernel: Kernel, keys: Mapping[Stage, tirx.Var], length: int) -> Kernel:
    """Return the kernel for the first `length` keys."""
    stages = (stage.with_extents({keys[stage]: length}) if stage in keys else stage for stage in kernel.stages)
    return Kernel(kernel.inputs, kernel.outputs, tuple(stages))


def key_operands(kernel: Kernel, keys: Mapping[Stage, tirx.Var]) -> dict:
    """Return the inputs that have numbers for each key, and the dimension of the keys in each.

    Raises
    ------
    Opaque
        If a kernel for some of the keys cannot be one for others by reading these inputs elsewhere: one is read
        through a map, or at other keys too, or the number of a key is itself an operand.
    """
    found, fixed = {}, []
    for stage in kernel.stages:
        key = keys.get(stage)
        for load in stage.loads:
            if not any(load.source.same_as(each) for each in kernel.inputs):
                continue
            dims = [d for d, at in enumerate(load.indices) if key is not None and _has(at, key)]
            if not dims:
                fixed.append(load.source)
            elif len(dims) > 1 or not load.indices[dims[0]].same_as(key):
                raise Opaque(f"'{load.source.name}' is read through a map")
            elif found.setdefault(load.source, dims[0]) != dims[0]:
                raise Opaque(f"'{load.source.name}' has keys in two dimensions")
        if key is not None and _has(_without_loads(stage.body.value), key):
            raise Opaque("the number of a key is an operand")
    twice = next((each for each in found if any(each.same_as(other) for other in fixed)), None)
    if twice is not None:
        raise Opaque(f"'{twice.name}' is read for all keys and for each")
    return found


def _has(expr, key) -> bool:
    return any(key.same_as(var) for var in variables(expr))


def _without_loads(expr):
    return mapped(expr, (ir.TensorLoad, lambda load: tirx.const(0, load.ty.dtype)))


def moved(nest: tirx.Stmt, operands: Mapping, first) -> tirx.Stmt:
    """Return a loop nest that reads its keys from number `first` on.

    Parameters
    ----------
    operands : mapping
        As `key_operands` returns them.

    Raises
    ------
    Opaque
        If the nest does more with these tensors than load their elements.
    """
    dims = {hash(source): dim for source, dim in operands.items()}
    nodes = [each for each in collect(nest, (ir.TensorLoad, ir.TensorRegion)) if hash(each.source) in dims]
    named = [each for each in collect(nest, ir.Var) if hash(each) in dims]
    if len(named) > len(nodes) or len({hash(each.source) for each in nodes}) < len(dims):
        raise Opaque("its loops do more than load elements")
    places = [each.indices[dims[hash(each.source)]] for each in nodes if isinstance(each, ir.TensorLoad)]
    if any(str(place.ty.dtype) != str(first.ty.dtype) for place in places):
        raise Opaque("its loops load vectors")

    def load(node):
        dim = dims.get(hash(node.source))
        if dim is None:
            return node
        indices = list(node.indices)
        indices[dim] = first + indices[dim]
        return tirx.BufferLoad(node.source, indices)

    def region(node):
        dim = dims.get(hash(node.source))
        if dim is None:
            return node
        ranges = list(node.region)
        ranges[dim] = ir.Range.from_min_extent(first + ranges[dim].min, ranges[dim].extent)
        return tirx.BufferRegion(node.source, ranges)

    return mapped(nest, (ir.TensorLoad, load), (ir.TensorRegion, region))


def lengths(capacity: int) -> list[int]:
    """Return the lengths for which a kernel has code of its own, the last one `capacity`."""
    step = max(1, -(-math.ceil(capacity / _LENGTHS) // ROUND)) * ROUND
    return [*range(step, capacity, step), capacity]


_LENGTHS = 8
"""The most lengths: chosen, at most an eighth of the capacity is read in vain, and code grows by as much."""
ROUND = 16
"""Keys of which a length is a multiple: chosen, a vector of the widest float32 registers."""

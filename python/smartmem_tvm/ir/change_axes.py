# SPDX-License-Identifier: Apache-2.0
"""Run a chain of stages over other iterators, so that two kernels with differently numbered rows can share them.

A matmul that writes the heads next to each other reads its left operand at ``p[c // 32, i, k]``. Splitting its
iterator ``c`` into digits makes that ``p[c0, i, k]``. If a producer numbers its rows differently from its reader
(windows against pixels), the producer runs over the reader's rows, through the map by which the reader reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import tvm_ffi
from tvm import ir, tirx

from .axes import axes_of, without_unit_iterators
from .compose import simplify
from .index_map import divisor_chain, unflatten, variables, visits_once
from .kernel import Kernel, Opaque, Stage, shape_of, substitute


def aligned(reader: Kernel, buffer, producer: Kernel) -> tuple[Kernel, object, Kernel]:
    """Rewrite two kernels so that `reader` reads the output of `producer` at bare iterators.

    Returns
    -------
    (Kernel, buffer, Kernel)
        Reader, its input, producer; unchanged where the reader already reads at bare iterators.

    Raises
    ------
    Opaque
        If the reader reads through several maps, or through one that visits rows twice or leaves some out.
    """
    reader, producer = without_unit_iterators(reader), _joined(without_unit_iterators(producer))
    indices, extents = read_map(reader, buffer)
    if _outside(indices, buffer):
        reader, indices, extents = _split(reader, buffer, indices, extents)
    group = _outside(indices, buffer)
    if not group:
        return reader, buffer, producer
    fixed = {v for n, i in enumerate(indices) if n not in group for v in variables(i)}
    moving = [v for v in _ordered(indices, group) if extents[v] > 1]
    shape = shape_of(buffer)
    sizes = {v: extents[v] for v in moving}
    fits = visits_once([indices[n] for n in group], sizes, [shape[n] for n in group])
    if fixed & set(moving) or not fits or math.prod(sizes.values()) != math.prod(shape[n] for n in group):
        raise Opaque(f"{buffer.name} is read through a map that is no renumbering")
    target = [producer.last.body.indices[n] for n in group]
    if not all(isinstance(v, ir.Var) and v in producer.last.extents for v in target):
        raise Opaque(f"{buffer.name} is written through a map")
    axes, _ = axes_of(producer)
    axis = [axes[producer.last][v] for v in target]

    def value_of(new: Sequence) -> list:
        return [substitute(indices[n], dict(zip(moving, new, strict=True))) for n in group]

    made = change_axes(producer, axis, [(v.name, extents[v]) for v in moving], value_of, axes, outputs=True)
    at = min(group)

    def read_at(load, place: dict) -> list:
        """Return the indices of a load in the renumbered rows: those of `moving` in the place of the group's."""
        kept = [i for n, i in enumerate(load.indices) if n not in group]
        before = sum(n not in group for n in range(at))
        return [*kept[:before], *(place[v] for v in moving), *kept[before:]]

    new = tirx.decl_buffer(made.outputs[0].shape, buffer.dtype, buffer.name)
    return _reading(reader, buffer, new, read_at), new, made


def _joined(kernel: Kernel) -> Kernel:
    """Return the kernel with one iterator for each output dimension whose index is made of several iterators."""
    for index in kernel.last.body.indices:
        digits = variables(index)
        if len(digits) < 2:
            continue
        if not all(v in kernel.last.extents for v in digits):
            raise Opaque(f"two dimensions of {kernel.outputs[0].name} are written along one iterator")
        axes, extents = axes_of(kernel)
        group = [axes[kernel.last][v] for v in digits]
        sizes = [extents[a] for a in group]

        def value_of(new: Sequence, sizes=sizes) -> list:
            return unflatten(new[0], sizes)

        kernel = simplify(change_axes(kernel, group, [(digits[0].name, math.prod(sizes))], value_of, axes))
    return kernel


def read_map(kernel: Kernel, buffer) -> tuple[list, dict]:
    """Return the only map through which a kernel reads `buffer`, with one variable per axis, and the axes' extents."""
    axes, _ = axes_of(kernel, buffer)
    canonical, extents = _canonical(kernel, axes)
    found = None
    for stage in kernel.stages:
        for indices in stage.maps(buffer):
            here = [substitute(i, {v: canonical[a] for v, a in axes[stage].items()}) for i in indices]
            if found is not None and not tvm_ffi.structural_equal(here, found):
                raise Opaque(f"{buffer.name} is read through several maps")
            found = here
    return found or [], extents


def _canonical(kernel: Kernel, axes: dict) -> tuple[dict, dict]:
    canonical: dict = {}
    for stage in kernel.stages:
        for var, axis in axes[stage].items():
            canonical.setdefault(axis, (var, stage.extents[var]))
    return {a: v for a, (v, _) in canonical.items()}, dict(canonical.values())


def _outside(indices: Sequence, buffer) -> list[int]:
    """Return the dimensions of `buffer` that are not read at an iterator of their own."""
    bare = [i for i in indices if isinstance(i, ir.Var)]
    found = []
    for n, (index, extent) in enumerate(zip(indices, shape_of(buffer), strict=True)):
        alone = isinstance(index, ir.Var) and sum(index.same_as(b) for b in bare) == 1
        if extent > 1 and not alone:
            found.append(n)
    return found


def _ordered(indices: Sequence, group: Sequence[int]) -> list:
    return list(dict.fromkeys(v for n in group for v in variables(indices[n])))


def _split(reader: Kernel, buffer, indices: list, extents: dict) -> tuple[Kernel, list, dict]:
    """Return the reader with each iterator that its map divides split into digits."""
    axes, _ = axes_of(reader, buffer)
    for var in _ordered(indices, range(len(indices))):
        bounds = divisor_chain(indices, var, extents[var])
        if len(bounds) < 3:
            continue
        axis = next(a for s in reader.stages for v, a in axes[s].items() if v.same_as(var))
        sizes = [high // low for low, high in pairwise(bounds)][::-1]
        strides = bounds[-2::-1]

        def value_of(new: Sequence, strides=strides) -> list:
            terms = [v * tirx.const(s, v.ty.dtype) if s > 1 else v for v, s in zip(new, strides, strict=True)]
            return [sum(terms[1:], start=terms[0])]

        names = [(f"{var.name}_{n}", size) for n, size in enumerate(sizes)]
        reader = simplify(change_axes(reader, [axis], names, value_of, axes))
        axes, _ = axes_of(reader, buffer)
    return (reader, *read_map(reader, buffer))


def change_axes(
    kernel: Kernel,
    group: Sequence[int],
    new: Sequence[tuple[str, int]],
    value_of: Callable,
    axes: dict,
    outputs: bool = False,
) -> Kernel:
    """Replace the axes `group` by new iterators in every stage that iterates over them.

    Parameters
    ----------
    new : sequence of (str, int)
        Name and extent of the new iterators.
    value_of : callable
        New variables -> value of each axis of the group.
    axes : dict
        The kernel's axes (`axes_of`).
    outputs : bool
        Whether to renumber the output as well; otherwise the kernel writes it in its old shape.

    Raises
    ------
    Opaque
        If a stage iterates over only some of the axes.
    """
    renamed: dict = {}
    stages = []
    for stage in kernel.stages:
        mine = {a: v for v, a in axes[stage].items() if a in group}
        if not mine:
            stages.append(stage)
            continue
        if len(mine) != len(group):
            raise Opaque(f"stage {stage.name} does not have all the axes")
        kept = not outputs and any(stage.body.buffer.same_as(o) for o in kernel.outputs)
        if not kept and any(v in stage.spatial for v in mine.values()):
            renamed[stage.body.buffer] = _renumbered(stage, mine, new)
        stages.append(_moved(stage, [mine[a] for a in group], new, value_of, renamed))
    swapped = tuple(renamed[o][0] if o in renamed else o for o in kernel.outputs)
    return replace(kernel, outputs=swapped, stages=tuple(stages))


def _renumbered(stage: Stage, mine: dict, new: Sequence) -> tuple:
    """Return a result buffer with dimensions of the new iterators, the old dimensions, and the first new one."""
    old = stage.body.buffer
    dims = [n for n, i in enumerate(stage.body.indices) if isinstance(i, ir.Var) and i in mine.values()]
    shape = [int(e) for n, e in enumerate(old.shape) if n not in dims]
    first = sum(n not in dims for n in range(min(dims)))
    shape[first:first] = [extent for _, extent in new]
    return tirx.decl_buffer(shape, old.dtype, old.name), dims, first


def _moved(stage: Stage, old: list, new: Sequence, value_of: Callable, renamed: dict) -> Stage:
    dtype = old[0].ty
    fresh = [tirx.Var(name, dtype) for name, _ in new]
    kind = next(it.iter_type for it in stage.iters if it.var.same_as(old[0]))
    added = [
        tirx.IterVar(ir.Range(tirx.const(0, dtype.dtype), tirx.const(extent, dtype.dtype)), var, kind)
        for var, (_, extent) in zip(fresh, new, strict=True)
    ]
    iters: list = []
    for it in stage.iters:
        if it.var.same_as(old[0]):
            iters += added
        elif not any(it.var.same_as(v) for v in old):
            iters.append(it)
    values = dict(zip(old, value_of(fresh), strict=True))

    def place(buffer, indices) -> tuple:
        target, dims, first = renamed[buffer]
        kept = [i for n, i in enumerate(indices) if n not in dims]
        return target, [*kept[:first], *fresh, *kept[first:]]

    def load(ld):
        if ld.source not in renamed:
            return ld
        target, indices = place(ld.source, ld.indices)
        return target[tuple(indices)]

    def store(st):
        if st.buffer not in renamed:
            return st
        target, indices = place(st.buffer, st.indices)
        return tirx.BufferStore(target, st.value, indices)

    def rewrite(node):
        node = tvm_ffi.structural_map(tvm_ffi.structural_map(node, (ir.TensorLoad, load)), (tirx.BufferStore, store))
        return substitute(node, values)

    init = rewrite(stage.init) if stage.init is not None else None
    return Stage(stage.name, tuple(iters), rewrite(stage.body), init, stage.annotations)


def _reading(kernel: Kernel, buffer, new, read_at: Callable) -> Kernel:
    """Return `kernel` with every load of input `buffer` replaced by a load of `new`."""
    axes, _ = axes_of(kernel, buffer)
    canonical, _ = _canonical(kernel, axes)
    stages = []
    for stage in kernel.stages:
        own = {canonical[a]: v for v, a in axes[stage].items()}

        def load(ld, own=own):
            return new[tuple(read_at(ld, own))] if ld.source.same_as(buffer) else ld

        body = tvm_ffi.structural_map(stage.body, (ir.TensorLoad, load))
        stages.append(Stage(stage.name, stage.iters, body, stage.init, stage.annotations))
    inputs = tuple(new if b.same_as(buffer) else b for b in kernel.inputs)
    return replace(kernel, inputs=inputs, stages=tuple(stages))

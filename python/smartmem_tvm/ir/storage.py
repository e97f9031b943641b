# SPDX-License-Identifier: Apache-2.0
"""Store a tensor of a kernel in another order of dimensions, or in a texture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import tvm_ffi
from tvm import ir, relax, tirx

from .._tvm import mapped
from ..planner.texture_form import TEXEL, TextureForm
from .change_axes import change_axes
from .compose import simplify
from .graph import Graph, Node
from .index_map import variables
from .kernel import Kernel, Opaque, Stage, shape_of
from .strength_reduction import Simplifier

# Layers of a network share kernels, so they share the kernels with textures too; an entry lives as long as its kernel.
_textured: WeakKeyDictionary[Kernel, dict] = WeakKeyDictionary()


def reordered(kernel: Kernel, buffer, order: Sequence[int]) -> tuple[Kernel, object]:
    """Return the kernel with an input or output stored in another order, and the new buffer.

    Before, with order (0, 2, 1)::

        out[b, c, x] = f(in[b, c, x])

    After::

        out'[b, x, c] = f(in[b, c, x])

    Parameters
    ----------
    order : sequence of int
        Dimensions of `buffer` from the outermost to the innermost one.
    """
    new = tirx.decl_buffer([buffer.shape[dim] for dim in order], buffer.dtype, buffer.name)
    kernel = stored_as(kernel, buffer, new, lambda indices: [indices[dim] for dim in order])
    return replace(kernel, stages=tuple(_in_memory_order(stage, new) for stage in kernel.stages)), new


def in_order(graph: Graph, node: Node, order: tuple[int, ...]) -> dict[Node, Kernel]:
    """Return, for `node` and all readers of its tensor, the kernel for the tensor in another order."""
    found = {node: reordered(node.kernel, node.kernel.outputs[0], order)[0]}
    for reader in graph.readers(node.var):
        kernel = reader.kernel
        for position, arg in enumerate(reader.args):
            if arg.same_as(node.var):
                kernel, _ = reordered(kernel, kernel.inputs[position], order)
        found[reader] = kernel
    return found


def store_as(graph: Graph, node: Node, order: tuple[int, ...]) -> None:
    """Let `node` write, and all its readers read, its tensor in another order."""
    for each, kernel in in_order(graph, node, order).items():
        each.kernel = kernel
    shape = list(node.kernel.outputs[0].shape)
    graph.rename(node, relax.DataflowVar(node.var.name, relax.TensorType(shape, node.var.ty.dtype)))


def textured(kernel: Kernel, buffer, form: TextureForm, scope: str) -> tuple[Kernel, object]:
    """Return the kernel with an input or output in a texture, and the new buffer.

    Before, with texels along the channels::

        out[n, c, h, w] = f(in[n, c, h, w])

    After, with a texture for the output::

        out'[n, q, h, w, lane] = f(in[n, q * 4 + lane, h, w])

    A kernel that writes a texture iterates over texels and over the four numbers of a texel. A kernel that reads a
    texture keeps its iterators.

    Parameters
    ----------
    scope : str
        Memory scope of the texture.

    Raises
    ------
    Opaque
        If the kernel writes `buffer` through a map along the dimension that becomes the texel.
    """
    known, key = _textured.setdefault(kernel, {}), (buffer, form, scope)
    if key not in known:
        known[key] = _in_texture(kernel, buffer, form, scope)
    return known[key]


def _in_texture(kernel: Kernel, buffer, form: TextureForm, scope: str) -> tuple[Kernel, object]:
    written = any(buffer.same_as(out) for out in kernel.outputs)
    if written:
        kernel = _over_texels(kernel, form.texel)
        buffer = kernel.outputs[0]
    else:
        kernel = replace(kernel, stages=tuple(_into_padding(stage, buffer, form.texel) for stage in kernel.stages))
    new = tirx.decl_buffer(list(form.shape), buffer.dtype, buffer.name, scope=scope)

    def place(indices) -> list:
        quad, lane = (indices[form.texel], indices[form.texel + 1]) if written else _digits(indices[form.texel])
        after = 1 if written else 0

        def along(axis: int | None):
            if axis is None:
                return tirx.const(0, lane.ty.dtype)
            return quad if axis == form.texel else indices[axis + (after if axis > form.texel else 0)]

        return [*map(along, form.axes), lane]

    return simplify(stored_as(kernel, buffer, new, place)), new


def _into_padding(stage: Stage, buffer, dim: int) -> Stage:
    """Return the stage without the clipping of indices to the end of a dimension of `buffer` that ends within a texel.

    A clipped index belongs to an element of padding (`_within_bounds`), and the texels have padding to read.
    """
    extent, analyzer = shape_of(buffer)[dim], Simplifier(stage.extents).analyzer
    texels = -(-extent // TEXEL) * TEXEL

    def unclipped(at):
        clipped = isinstance(at, tirx.Min) and isinstance(at.b, tirx.IntImm) and int(at.b) == extent - 1
        return at.a if clipped and analyzer.const_int_bound(at.a).max_value < texels else at

    def load(old):
        if not old.source.same_as(buffer):
            return old
        return tirx.BufferLoad(old.source, [unclipped(at) if i == dim else at for i, at in enumerate(old.indices)])

    return stage if extent == texels else replace(stage, body=tvm_ffi.structural_map(stage.body, (ir.TensorLoad, load)))


def _digits(index) -> tuple:
    four = tirx.const(TEXEL, index.ty.dtype)
    return tirx.floordiv(index, four), tirx.floormod(index, four)


def _over_texels(kernel: Kernel, dim: int) -> Kernel:
    """Return the kernel with dimension `dim` of its output split in two: texels, and the numbers of a texel."""
    var, extent = kernel.last.body.indices[dim], shape_of(kernel.outputs[0])[dim]
    if not isinstance(var, ir.Var) or var not in kernel.last.extents:
        raise Opaque(f"dimension {dim} of {kernel.outputs[0].name} is written through a map")
    four = tirx.const(TEXEL, var.ty.dtype)
    axes = {stage: {} for stage in kernel.stages} | {s: {v: 0} for s, v in along_result(kernel, var).items()}
    new = [(f"{var.name}_texel", -(-extent // TEXEL)), ("lane", TEXEL)]
    made = change_axes(kernel, [0], new, lambda at: [at[0] * four + at[1]], axes, outputs=True)
    if extent % TEXEL == 0:
        return made
    return replace(made, stages=tuple(map(_within_bounds, kernel.stages, made.stages)))


def _within_bounds(before: Stage, stage: Stage) -> Stage:
    """Return the stage with the indices of its new iterators clipped to the tensors, which padding may exceed."""
    new, simplifier = set(stage.spatial) - set(before.spatial), Simplifier(stage.extents)
    if not new:
        return stage

    def inside(at, extent: int):
        first, last = tirx.const(0, at.ty.dtype), tirx.const(extent - 1, at.ty.dtype)
        if not new & set(variables(at)):
            return at
        at = at if simplifier.analyzer.can_prove(at <= last) else tirx.min(at, last)
        return at if simplifier.analyzer.can_prove(at >= first) else tirx.max(at, first)

    def load(old):
        return tirx.BufferLoad(old.source, list(map(inside, old.indices, shape_of(old.source))))

    return replace(stage, body=tvm_ffi.structural_map(stage.body, (ir.TensorLoad, load)))


def beside_results(kernel: Kernel, buffer) -> list[int]:
    """Return the dimensions of an input that a kernel reads along dimensions of its result, the innermost first."""
    store, extents = kernel.last.body, kernel.last.extents
    indices = reversed(store.indices) if isinstance(store, tirx.BufferStore) else ()
    walked = [along_result(kernel, index) for index in indices if isinstance(index, ir.Var) and index in extents]
    read = [(along[s], load) for along in walked for s in along for load in s.loads if load.source.same_as(buffer)]
    return [dim for var, load in read for dim, at in enumerate(load.indices) if var in variables(at)]


def along_result(kernel: Kernel, var) -> dict:
    """Return the stages that run along the same dimension of the result as `var`, with their iterators for it.

    A stage does if all of its readers read it at that iterator: the sum that an epilogue finishes, but not the padding
    of a convolution.
    """
    found = {kernel.last: var}
    for stage in reversed(kernel.stages[:-1]):
        buffer = stage.outputs[0]
        loads = [(s, load) for s in kernel.readers(buffer) for load in s.loads if load.source.same_as(buffer)]
        if len(stage.outputs) > 1 or not loads or any(reader not in found for reader, _ in loads):
            continue
        for dim, made in enumerate(stage.body.indices):
            bare = all(load.indices[dim].same_as(found[reader]) for reader, load in loads)
            if bare and isinstance(made, ir.Var) and made in stage.spatial:
                found[stage] = made
    return found


def stored_as(kernel: Kernel, buffer, new, place: Callable[[Sequence], Sequence]) -> Kernel:
    """Return the kernel with ``buffer[indices]`` replaced by ``new[place(indices)]``."""

    def swap(one):
        return new if one.same_as(buffer) else one

    def load(old):
        return tirx.BufferLoad(new, place(old.indices)) if old.source.same_as(buffer) else old

    def store(old):
        return tirx.BufferStore(new, old.value, place(old.indices)) if old.buffer.same_as(buffer) else old

    def rewrite(node):
        return mapped(mapped(node, (ir.TensorLoad, load)), (tirx.BufferStore, store))

    def moved(stage: Stage) -> Stage:
        init = rewrite(stage.init) if stage.init is not None else None
        return Stage(stage.name, stage.iters, rewrite(stage.body), init, stage.annotations)

    inputs, outputs = tuple(map(swap, kernel.inputs)), tuple(map(swap, kernel.outputs))
    return Kernel(inputs, outputs, tuple(map(moved, kernel.stages)))


def _in_memory_order(stage: Stage, buffer) -> Stage:
    """Return the stage with its iterators in the order of `buffer`'s dimensions, if it writes at bare iterators."""
    store = stage.body
    if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(buffer):
        return stage
    by_var = {it.var: it for it in stage.iters if it.var in stage.spatial}
    bare = [by_var[index] for index in store.indices if isinstance(index, ir.Var) and index in by_var]
    if len(bare) != len(by_var):
        return stage
    return replace(stage, iters=(*bare, *(it for it in stage.iters if it.var not in by_var)))

# SPDX-License-Identifier: Apache-2.0
"""StageTexels: vectors that no single access to a texture reads or writes are taken apart and put together."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import SBlock, SBlockRealize

from ..analysis.index_map import is_if_then_else, variables
from ..analysis.kernel import substitute
from ..analysis.texels import is_texture
from ..planner.texture_form import TEXEL


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.StageTexels")
class StageTexels:
    """Split vectorized loops over textures where TVM's vectorizer would make no vector of them.

    Before, with a texture ``B`` padded to a multiple of four::

        for v in T.vectorized(4): B[i, j, v] = T.if_then_else(j * 4 + v < n, A[j * 4 + v], 0)

    After::

        for v in range(4): numbers[v] = T.if_then_else(j * 4 + v < n, A[j * 4 + v], 0)
        for v in T.vectorized(4): B[i, j, v] = numbers[v]

    Branches that depend on the lane cannot be vectorized, nor functions that TVM knows for single numbers only (erf),
    and an image takes no single numbers. The same is done where the numbers of a vector come from other lanes or from
    several texels of a texture.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite the vectorized loops of one function, before textures are flattened."""
        staged: list = []
        body = tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: _stage(loop, staged)))
        return func.with_body(_allocate(body, staged) if staged else body)


def _stage(loop: tirx.For, staged: list) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    bare = isinstance(loop.body, tirx.BufferStore)  # as a schedule written by hand has it
    if not bare and not isinstance(loop.body, SBlockRealize):
        return loop
    store = loop.body if bare else loop.body.block.body
    if not isinstance(store, tirx.BufferStore) or not _needs_scalars(loop, store):
        return loop
    copy = _copy_bare if bare else _copy
    if not is_texture(store.buffer):
        return copy(loop, tirx.ForKind.SERIAL, store)
    # Half is rounded to when the texel is written: before that it may be a type without arithmetic.
    narrow = str(store.buffer.dtype) == "float16"
    numbers = tirx.decl_buffer((TEXEL,), "float32" if narrow else store.buffer.dtype, "numbers", scope="local")
    lane = store.indices[-1]
    fill = tirx.BufferStore(numbers, _as_float(store.value) if narrow else store.value, [lane])
    write = tirx.BufferStore(store.buffer, numbers[lane].astype(store.buffer.dtype), store.indices)
    both = tirx.SeqStmt([copy(loop, tirx.ForKind.SERIAL, fill), copy(loop, tirx.ForKind.VECTORIZED, write)])
    if bare:
        return SBlockRealize([], True, SBlock([], [], [], "texel", both, alloc_buffers=[numbers]))
    staged.append(numbers)
    return both


def _needs_scalars(loop: tirx.For, store: tirx.BufferStore) -> bool:
    value = store.value
    if isinstance(loop.body, SBlockRealize):
        realize = loop.body
        value = substitute(value, {it.var: at for it, at in zip(realize.block.iter_vars, realize.iter_values)})
    branches, loads = _found(value, ir.Call), _found(value, ir.TensorLoad)
    if is_texture(store.buffer) and any(_is_scalar(call, loop) for call in branches):
        return True
    analyzer = sym.Analyzer()
    analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    return any(is_texture(load.source) and not _is_vector(load, loop, analyzer) for load in loads)


def _is_scalar(call: ir.Call, loop: tirx.For) -> bool:
    """Whether TVM's vectorizer makes a scalar loop of a statement with this call: a branch, or a function like erf."""
    if is_if_then_else(call):
        return loop.loop_var in variables(call.args[0])
    return isinstance(call.op, ir.Op) and not call.op.get_attr("TVectorizable")


def _is_vector(load: ir.TensorLoad, loop: tirx.For, analyzer: sym.Analyzer) -> bool:
    """Whether the lanes of a loop are the numbers of one texel, in their order, or all the same number."""
    *place, lane = [analyzer.simplify(index) for index in load.indices]
    if any(loop.loop_var in variables(index) for index in place):
        return False
    same = loop.loop_var not in variables(lane)
    return same or (int(loop.extent) == TEXEL and analyzer.can_prove_equal(lane, loop.loop_var))


def _found(value: ir.Expr, kind: type) -> list:
    found: list = []
    tvm_ffi.structural_walk(value, (kind, found.append))
    return found


def _as_float(value: ir.Expr) -> ir.Expr:
    """A half before it is rounded."""
    if is_if_then_else(value):
        condition, yes, no = value.args
        return tirx.if_then_else(condition, _as_float(yes), _as_float(no))
    before = value.value if isinstance(value, tirx.Cast) else value
    return before if str(before.ty.dtype) == "float32" else value.astype("float32")


def _copy(loop: tirx.For, kind: int, store: tirx.BufferStore) -> tirx.For:
    """The same loop and block, with variables of their own, around another store."""
    realize, block = loop.body, loop.body.block
    var = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    iters = [tirx.IterVar(it.dom, tirx.Var(it.var.name, it.var.ty.dtype), it.iter_type) for it in block.iter_vars]
    renamed = substitute(store, {old.var: new.var for old, new in zip(block.iter_vars, iters)})
    reads = {load.source: None for load in _found(store.value, ir.TensorLoad)}
    block = SBlock(
        iters, [_whole(buffer) for buffer in reads], [_whole(store.buffer)], block.name_hint, renamed,
        annotations=block.annotations,
    )  # fmt: skip
    values = [substitute(value, {loop.loop_var: var}) for value in realize.iter_values]
    body = SBlockRealize(values, substitute(realize.predicate, {loop.loop_var: var}), block)
    return tirx.For(var, loop.min, loop.extent, kind, body, annotations=loop.annotations)


def _copy_bare(loop: tirx.For, kind: int, store: tirx.BufferStore) -> tirx.For:
    """The same loop, with a variable of its own, around another store."""
    var = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    body = substitute(store, {loop.loop_var: var})
    return tirx.For(var, loop.min, loop.extent, kind, body, annotations=loop.annotations)


def _whole(buffer: tirx.Var) -> ir.TensorRegion:
    """More than is read or written, which is all that the passes behind this one need to know."""
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(0, extent) for extent in buffer.shape])


def _allocate(root: SBlockRealize, buffers: list) -> SBlockRealize:
    """Let the outermost block own the buffers; TVM moves them to where they are used."""
    block = root.block
    owner = SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init,
        [*block.alloc_buffers, *buffers], block.match_buffers, block.annotations,
    )  # fmt: skip
    return SBlockRealize(root.iter_values, root.predicate, owner)

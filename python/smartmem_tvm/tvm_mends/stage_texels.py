# SPDX-License-Identifier: Apache-2.0
"""StageTexels: vectors that no single texture access reads or writes go through registers."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import SBlock, SBlockRealize

from .._tvm import mapped
from ..ir.index_map import is_if_then_else, variables
from ..ir.kernel import substitute
from ..ir.texels import is_texture, texture_loads
from ..ir.vectorized import Places, accesses_to_booleans, has_no_vector, lanes_of, scattered_bytes
from ..ir.walk import contains, loads
from ..planner.texture_form import TEXEL


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.StageTexels")
class StageTexels:
    """Split vectorized loops over textures where TVM's vectorizer would make no vector of them.

    Before, with textures ``B`` and ``C`` padded to a multiple of four::

        for v in T.vectorized(4): B[i, j, v] = T.if_then_else(j * 4 + v < n, A[j * 4 + v] + C[i, j, v], 0)

    After::

        for v in T.vectorized(4): texel[v] = C[i, j, v]
        for v in range(4): numbers[v] = T.if_then_else(j * 4 + v < n, A[j * 4 + v] + texel[v], 0)
        for v in T.vectorized(4): B[i, j, v] = numbers[v]

    TVM cannot vectorize branches that depend on the lane, functions that it has for scalars only (erf), or booleans and
    bytes in memory; and an image can only be read and written by whole texels. The loop therefore reads each texel
    once, computes lane by lane, and writes whole texels. The same is done where the numbers of a vector come from other
    lanes or from several texels of a texture.

    Where such a loop computes in half, the halves that it reads from buffers are loaded and stored as vectors, too.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite the vectorized loops of one function, before textures are flattened."""
        staged: list = []
        body = tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: _stage(loop, staged)))
        return func.with_body(_allocate(body, staged) if staged else body)


def _stage(loop: tirx.For, staged: list) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    bare = isinstance(loop.body, tirx.BufferStore)  # no block, as in schedules written by hand
    if not bare and not isinstance(loop.body, SBlockRealize):
        return loop
    store = loop.body if bare else loop.body.block.body
    if not isinstance(store, tirx.BufferStore):
        return loop
    halves = bare and _are_halves(store)
    if not halves and not is_texture(store.buffer) and not texture_loads(store.value):
        return loop  # on-chip buffers only: most loops of an unrolled kernel
    copy = _copy_bare if bare else _copy
    by_texels = tirx.BufferStore(store.buffer, _by_texels(store.value), store.indices)
    if not _needs_scalars(loop, by_texels):
        return loop if tvm_ffi.structural_equal(store, by_texels) else copy(loop, loop.kind, by_texels)
    texels = [*_staged_texels(loop, by_texels), *(_staged_vectors(loop, by_texels) if halves else ())]
    fills = [tirx.BufferStore(texel, load, [at]) for load, texel, at in texels]
    parts = [copy(loop, tirx.ForKind.VECTORIZED, fill) for fill in fills]
    local = [texel for _, texel, _ in texels]
    value = _replaced(by_texels.value, texels)
    if halves:
        local.append(_numbers("numbers", int(loop.extent), "float16"))
        lane = loop.loop_var
        fill, write = (
            tirx.BufferStore(local[-1], value, [lane]),
            tirx.BufferStore(store.buffer, tirx.BufferLoad(local[-1], [lane]), store.indices),
        )
        parts += [copy(loop, tirx.ForKind.SERIAL, fill), copy(loop, tirx.ForKind.VECTORIZED, write)]
    elif not is_texture(store.buffer):
        parts.append(copy(loop, tirx.ForKind.SERIAL, tirx.BufferStore(store.buffer, value, store.indices)))
    else:
        # The write of the texel rounds to half; before it, half may be a type without arithmetic.
        narrow = str(store.buffer.dtype) == "float16" and not _computes_in_half(value)
        local.append(_texel("numbers", "float32" if narrow else store.buffer.dtype))
        lane = store.indices[-1]
        fill = tirx.BufferStore(local[-1], _as_float(value) if narrow else value, [lane])
        write = tirx.BufferStore(store.buffer, local[-1][lane].astype(store.buffer.dtype), store.indices)
        parts += [copy(loop, tirx.ForKind.SERIAL, fill), copy(loop, tirx.ForKind.VECTORIZED, write)]
    body = tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]
    if bare and local:
        return SBlockRealize([], True, SBlock([], [], [], "texel", body, alloc_buffers=local))
    staged.extend(local)
    return body


def _texel(name: str, dtype: str) -> tirx.Var:
    return _numbers(name, TEXEL, dtype)


def _numbers(name: str, count: int, dtype: str) -> tirx.Var:
    return tirx.decl_buffer((count,), dtype, name, scope="local")


def _are_halves(store: tirx.BufferStore) -> bool:
    """Whether the value stored to a buffer in memory is computed in half."""
    in_memory = store.buffer.scope() == "global" and str(store.buffer.dtype) == "float16"
    return in_memory and _computes_in_half(store.value)


def _staged_vectors(loop: tirx.For, store: tirx.BufferStore) -> list[tuple[ir.TensorLoad, tirx.Var, ir.Expr]]:
    """Return the contiguous halves in memory that are loaded as a vector, in the form of `_staged_texels`."""
    places, found = Places(loop), []
    for load in loads(store.value):
        if load.source.scope() != "global" or str(load.source.dtype) != "float16":
            continue
        known = any(tvm_ffi.structural_equal(load, other) for other, *_ in found)
        if not known and places.step(load.indices, load.source, loop) == 1:
            found.append((load, _numbers("vector", int(loop.extent), "float16"), loop.loop_var))
    return found


def _staged_texels(loop: tirx.For, store: tirx.BufferStore) -> list[tuple[ir.TensorLoad, tirx.Var, ir.Expr]]:
    """Return the texels that one access reads and whose numbers are then used one by one.

    Each comes with a buffer for its numbers, and the index of a number in that buffer.
    """
    place = _values(loop)
    found: list = []
    for load in texture_loads(store.value):
        if loop.loop_var not in variables(substitute(load.indices[-1], place)):
            continue
        known = any(tvm_ffi.structural_equal(load, other) for other, *_ in found)
        if not known and _is_vector(substitute(load, place), loop, _within(loop)):
            found.append((load, _texel("texel", load.source.dtype), load.indices[-1]))
    return found


def _replaced(value: ir.Expr, texels: list[tuple[ir.TensorLoad, tirx.Var, ir.Expr]]) -> ir.Expr:
    def read(load: ir.TensorLoad) -> ir.Expr:
        known = [(texel, at) for other, texel, at in texels if tvm_ffi.structural_equal(load, other)]
        return tirx.BufferLoad(known[0][0], [known[0][1]]) if known else load

    return tvm_ffi.structural_map(value, (ir.TensorLoad, read)) if texels else value


def _by_texels(value: ir.Expr) -> ir.Expr:
    """Count in texels where a texture is read: TVM does not find that ``(x * 4 + v) // 64`` is independent of `v`."""

    def quarters(div: tirx.FloorDiv) -> ir.Expr:
        if not isinstance(div.b, tirx.IntImm) or int(div.b) <= TEXEL or int(div.b) % TEXEL:
            return div
        texel, rest = (tirx.const(number, div.b.ty.dtype) for number in (TEXEL, int(div.b) // TEXEL))
        return tirx.FloorDiv(tirx.FloorDiv(div.a, texel), rest)

    def read(load: ir.TensorLoad) -> ir.Expr:
        if not is_texture(load.source):
            return load
        return tirx.BufferLoad(load.source, [mapped(index, (tirx.FloorDiv, quarters)) for index in load.indices[:]])

    return mapped(value, (ir.TensorLoad, read))


def _needs_scalars(loop: tirx.For, store: tirx.BufferStore) -> bool:
    value = substitute(store.value, _values(loop))
    if contains(value, ir.Call, lambda call: has_no_vector(call, loop.loop_var)):
        return True
    lanes = lanes_of(loop)
    small = [*accesses_to_booleans(store.value), *scattered_bytes(store.value, loop, Places(loop))]
    if any(lanes & set(variables(load)) for load in small):
        return True
    within = _within(loop)
    return any(not _is_vector(load, loop, within) for load in texture_loads(value))


def _values(loop: tirx.For) -> dict:
    """Return the values of the iterators of the block in a loop."""
    realize = loop.body
    bare = not isinstance(realize, SBlockRealize)
    return {} if bare else {it.var: at for it, at in zip(realize.block.iter_vars, realize.iter_values)}


def _within(loop: tirx.For) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    return analyzer


def _is_vector(load: ir.TensorLoad, loop: tirx.For, analyzer: sym.Analyzer) -> bool:
    """Whether the lanes of a loop read the numbers of one texel in order, or all the same number."""
    *place, lane = [analyzer.simplify(index) for index in load.indices]
    if any(loop.loop_var in variables(index) for index in place):
        return False
    same = loop.loop_var not in variables(lane)
    return same or (int(loop.extent) == TEXEL and analyzer.can_prove_equal(lane, loop.loop_var))


def _computes_in_half(value: ir.Expr) -> bool:
    """Whether the value is computed in half, so that the device has half arithmetic."""
    if is_if_then_else(value):
        return any(map(_computes_in_half, value.args[1:]))
    return not isinstance(value, (tirx.Cast, ir.TensorLoad, tirx.FloatImm)) and str(value.ty.dtype) == "float16"


def _as_float(value: ir.Expr) -> ir.Expr:
    """Return a half as the float before its rounding."""
    if is_if_then_else(value):
        condition, yes, no = value.args
        return tirx.if_then_else(condition, _as_float(yes), _as_float(no))
    before = value.value if isinstance(value, tirx.Cast) else value
    return before if str(before.ty.dtype) == "float32" else value.astype("float32")


def _copy(loop: tirx.For, kind: int, store: tirx.BufferStore) -> tirx.For:
    """Return a copy of the loop and its block, with new variables, around another store."""
    realize, block = loop.body, loop.body.block
    var = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    iters = [tirx.IterVar(it.dom, tirx.Var(it.var.name, it.var.ty.dtype), it.iter_type) for it in block.iter_vars]
    renamed = substitute(store, {old.var: new.var for old, new in zip(block.iter_vars, iters)})
    reads = {load.source: None for load in loads(store.value)}
    block = SBlock(
        iters, [_whole(buffer) for buffer in reads], [_whole(store.buffer)], block.name_hint, renamed,
        annotations=block.annotations,
    )  # fmt: skip
    values = [substitute(value, {loop.loop_var: var}) for value in realize.iter_values]
    body = SBlockRealize(values, substitute(realize.predicate, {loop.loop_var: var}), block)
    return tirx.For(var, loop.min, loop.extent, kind, body, annotations=loop.annotations)


def _copy_bare(loop: tirx.For, kind: int, store: tirx.BufferStore) -> tirx.For:
    """Return a copy of the loop, with a new variable, around another store."""
    var = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    body = substitute(store, {loop.loop_var: var})
    return tirx.For(var, loop.min, loop.extent, kind, body, annotations=loop.annotations)


def _whole(buffer: tirx.Var) -> ir.TensorRegion:
    """Return the whole buffer as a region: an upper bound, which is enough for the later passes."""
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(0, extent) for extent in buffer.shape])


def _allocate(root: SBlockRealize, buffers: list) -> SBlockRealize:
    """Let the outermost block own the buffers; TVM moves them to where they are used."""
    block = root.block
    owner = SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init,
        [*block.alloc_buffers, *buffers], block.match_buffers, block.annotations,
    )  # fmt: skip
    return SBlockRealize(root.iter_values, root.predicate, owner)

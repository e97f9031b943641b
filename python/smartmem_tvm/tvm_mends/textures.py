# SPDX-License-Identifier: Apache-2.0
"""Work-arounds for vectors and textures on OpenCL: one pass for each fault, over kernels during their lowering."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from .._tvm import TEXTURE_LOAD, TEXTURE_STORE, is_texture_access, texture_dtype, texture_of, texture_params
from ..ir.lanes import chosen_lane
from ..planner.texture_form import TEXEL


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixVectorizedNests")
class FixVectorizedNests:
    """Work-around: make vectorized loops innermost.

    Before::

        for v in T.vectorized(4):
            for r in range(n): local[v] = T.max(local[v], A[r, v])
            B[v] = local[v]

    After::

        for r in range(n):
            for v in T.vectorized(4): local[v] = T.max(local[v], A[r, v])
        for v in T.vectorized(4): B[v] = local[v]

    TVM's schedule of a pool on Adreno is the former. Its lowering then allocates ``local`` inside the vectorized loop,
    with one element instead of four, and the four lanes overwrite each other.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one scheduled, unlowered function."""

        def sink(loop: tirx.For):
            nested = isinstance(loop.body, (tirx.SeqStmt, tirx.For))
            return _over(loop, loop.body) if nested and loop.kind == tirx.ForKind.VECTORIZED else loop

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, sink)))


def _over(lanes: tirx.For, stmt: tirx.Stmt) -> tirx.Stmt:
    """Return `stmt` for all `lanes`, which are independent, with the lanes' loop as far inside as possible."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_over(lanes, each) for each in stmt])
    sequential = isinstance(stmt, tirx.For) and stmt.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
    if sequential and isinstance(stmt.extent, tirx.IntImm):
        body = _over(lanes, stmt.body)
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, annotations=stmt.annotations)
    lane = tirx.Var(lanes.loop_var.name, lanes.loop_var.ty.dtype)
    body = tvm_ffi.structural_map(stmt, (tirx.Var, lambda var: lane if var.same_as(lanes.loop_var) else var))
    return tirx.For(lane, lanes.min, lanes.extent, lanes.kind, body, annotations=lanes.annotations)


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixTextureStore")
class FixTextureStore:
    """Work-around: give ``texture2d_store`` an integer result type.

    Before::

        for v_s in range(4): write_imagef(B, xyz, A[... + v_s])     # one number, four times, into the whole texel

    After::

        write_imagef(B, xyz, vload4(0, A + ...))

    TextureFlatten builds the call with the type of its first argument, a pointer, and the vectorizer turns a statement
    with a pointer in it into a scalar loop.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite the stores of one function."""

        def as_integer(call: ir.Call):
            return tirx.call_intrin("int32", TEXTURE_STORE, *call.args) if call.op.same_as(TEXTURE_STORE) else call

        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, as_integer)))


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixIntegerTextures")
class FixIntegerTextures:
    """Work-around: read and write integer textures with OpenCL's functions for integers.

    Before::

        as_int4(read_imagef(A, ...))          # undefined for an image of integers; an 8-bit one is refused

    After::

        read_imagei(A, ...)                   # converted to the element type, if that is narrower

    TVM's code generator chooses the function by the size of a texel alone, and handles 64 and 128 bits only.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel, after the split of host and device."""
        params, seen = texture_params(func), {}
        if not any("int" in str(param.ty.element_type.dtype) for param in params.values()):
            return func

        def rewrite(call: ir.Call):
            if not is_texture_access(call) or _integer(call) is None:
                return call
            param = params[texture_of(call)]
            seen[param, call.op.name] = tirx.call_intrin(call.ty.dtype, call.op, param, *list(call.args)[1:])
            return _integer_load(call) if call.op.same_as(TEXTURE_LOAD) else _integer_store(call)

        body = tvm_ffi.structural_map(func.body, (ir.Call, rewrite))
        for (param, _), call in seen.items():
            # TVM's generator finds out from its own texture calls whether an image is read or written. It searches
            # the values of attributes too, but prints no attribute with an unknown name.
            body = tirx.AttrStmt(param, "smartmem.texture_access", call, body)
        return func.with_body(body)


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixTexelLanes")
class FixTexelLanes:
    """Work-around: name a number of a texel, or choose it by comparisons where the thread decides which.

    Before::

        ((half*)&texel)[2]
        ((half*)&texel)[get_local_id(0) & 3]

    After::

        texel.s2
        select(select(texel.s2, texel.s3, lane == 3), select(texel.s0, texel.s1, lane == 1), lane < 2)

    TVM's code generator takes the address of the texel, which then goes through private memory outside of registers:
    Adreno's compiler stores the whole texel and loads one number, unless it can prove which, and that a branch of the
    program leads there does not keep it from it.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel, after the split of host and device."""

        def rewrite(call: ir.Call) -> ir.Expr:
            if not call.op.same_as(TEXTURE_LOAD) or isinstance(call.args[5], tirx.Ramp):
                return call
            *place, number = call.args
            whole = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), TEXEL)
            texel = tirx.call_intrin(f"{call.ty.dtype}x{TEXEL}", TEXTURE_LOAD, *place, whole)
            return chosen_lane(texel, number)

        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, rewrite)))


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixVectorBooleans")
class FixVectorBooleans:
    """Work-around: give OpenCL vectors of booleans that are true where all bits are.

    Before::

        T.Cast("float32x4", a < b);     T.Select(T.Broadcast(c, 4), x, y)

    After::

        T.Select(a < b, T.Broadcast(1.0, 4), T.Broadcast(0.0, 4))
        T.Select(T.Broadcast(T.Cast("int32", c), 4) != T.Broadcast(0, 4), x, y)

    True is -1 in a vector of OpenCL, where TVM's code generator assumes 1: a mask times a tensor comes out with the
    wrong sign. TVM's broadcast of one boolean holds 1, which ``select`` takes for false.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel, after the split of host and device."""

        def number(cast: tirx.Cast) -> ir.Expr:
            if not _is_vector_of_booleans(cast.value):
                return cast
            one, zero = (_alike(value, cast) for value in (1, 0))
            return tirx.Select(cast.value, one, zero)

        def wide(broadcast: tirx.Broadcast) -> ir.Expr:
            if not _is_vector_of_booleans(broadcast):
                return broadcast
            chosen = tirx.Broadcast(broadcast.value.astype("int32"), broadcast.lanes)
            return tirx.NE(chosen, tirx.Broadcast(tirx.const(0, "int32"), broadcast.lanes))

        return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.Cast, number), (tirx.Broadcast, wide)]))


def _is_vector_of_booleans(value: ir.Expr) -> bool:
    dtype = tvm_ffi.dtype(str(value.ty.dtype))
    return dtype.lanes > 1 and str(dtype).startswith("bool")


def _alike(value: int, vector: ir.Expr) -> ir.Expr:
    """Return a broadcast of one number, of the type of `vector`."""
    element, _, lanes = str(vector.ty.dtype).rpartition("x")
    return tirx.Broadcast(tirx.const(value, element), int(lanes))


def _integer(access: ir.Call) -> tuple[str, str] | None:
    """Return a texel's type in registers and the suffix of OpenCL's image functions, if the texel has integers."""
    name = texture_dtype(access).rstrip("0123456789")
    return {"int": ("int32x4", "i"), "uint": ("uint32x4", "ui")}.get(name)


def _integer_load(load: ir.Call) -> ir.Expr:
    image, x, y, z, _, lanes = load.args
    vector, suffix = _integer(load)
    texel = tirx.call_pure_extern(vector, f"read_image{suffix}", image, _coordinate(x, y, z))
    # A ramp covers a whole texel: StageTexels has split shorter ones.
    value = texel if isinstance(lanes, tirx.Ramp) else chosen_lane(texel, lanes)
    return value.astype(load.ty.dtype)


def _integer_store(store: ir.Call) -> ir.Expr:
    image, x, y, z, _, value = store.args
    vector, suffix = _integer(store)
    return tirx.call_extern("int32", f"write_image{suffix}", image, _coordinate(x, y, z), value.astype(vector))


def _coordinate(x: ir.Expr, y: ir.Expr, z: ir.Expr) -> ir.Expr:
    return tirx.call_pure_extern("int32x4", "(int4)", x, y, z, 0)

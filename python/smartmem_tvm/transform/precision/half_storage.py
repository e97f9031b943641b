# SPDX-License-Identifier: Apache-2.0
"""HalfStorage: float16 in memory for kernels that compute in float32, on every OpenCL device."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from ..._tvm import TEXTURE_LOAD, TEXTURE_STORE, texture_of, texture_params
from ...errors import UserError
from ...ir.half import FLOAT, HALF
from ...ir.half_calls import SUFFIXES, rounded, with_rounding
from ...ir.index_map import is_if_then_else
from ...ir.lanes import lane, lanes_of, vector
from ...ir.memory import memory_of
from ...ir.walk import collect, contains, stores
from ...planner.texture_form import TEXEL
from ...target import has_half_arithmetic

_EXACT = (tirx.Max, tirx.Min)
_ROUNDING = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
_SPACES = {"global": "__global", "shared": "__local", "local": "__private"}


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.HalfStorage")
class HalfStorage:
    """Read halves as floats and write floats as halves, in kernels (after the split from the host) that do so anyway.

    Before, with ``A`` a texture and ``B`` a buffer of float16::

        B[store] = T.Cast("float16x4", T.Cast("float32x4", A[load]) * y)     # half4: needs cl_khr_fp16

    After::

        vstore_half4(A[load] * y, 0, B + ...)                                # read_imagef, float4

    OpenCL devices without half arithmetic can still store halves: the texture unit and ``vload_half`` convert, exactly
    when they read and with one rounding when they write. The host still sees tensors of halves. Halves in on-chip
    memory are treated alike; registers into which no value is rounded hold floats. A kernel that computes in half stays
    as it is, and needs the extension ``cl_khr_fp16``; `ComputeSingle` removes such arithmetic beforehand.

    Parameters
    ----------
    last : bool
        Refuse kernels that still have halves after this pass, for a device without the extension.
    """

    def __init__(self, last: bool = False):
        self.last = last

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel, or leave it as it is if it computes with halves.

        Raises
        ------
        UserError
            If a half is left, the device has no arithmetic for it, and no later pass removes it (`last`).
        """
        target = (func.attrs or {}).get("target")
        if target is None or target.kind.name != "opencl" or not _has_half(func):
            return func
        extended = has_half_arithmetic(target)
        new = func if _computes_in_half(func.body) else _Kernel(func, extended).rewritten()
        if self.last and not extended and _has_half(new):
            raise UserError(
                f"kernel {func.attrs['global_symbol']} needs the bits of float16 numbers, and an OpenCL device that is "
                f"not known to compute with them has no such type: name a device that does (adreno-740, mali-g76), or "
                f"use float32 in the model."
            )
        return new


class _Kernel:
    """Rewriter of one kernel: halves become textures of floats, 16-bit words in any memory, or registers of floats."""

    def __init__(self, func: tirx.PrimFunc, extended: bool):
        self.func, self.extended = func, extended
        self.params, self.textures, self.words, self.floats = {}, {}, {}, {}
        for param in func.params:
            if isinstance(param.ty, ir.PointerType) and _is_half(param.ty.element_type):
                image = "texture" in param.ty.storage_scope
                element = ir.PrimType(FLOAT if image else "uint16")
                self.params[param] = tirx.Var(param.name, ir.PointerType(element, param.ty.storage_scope))
        for var, param in texture_params(func).items():
            if param in self.params:
                self.textures[var] = self.params[param]
        self.rounded, self.places = _rounded(func.body), memory_of(func.body)
        shared = [root for buffer, root in self.places.items() if not buffer.same_as(root)]
        self.reused = [buffer for buffer, root in self.places.items() if any(map(root.same_as, shared))]
        for statement in collect(func.body, (tirx.DeclBuffer, tirx.AllocBuffer)):
            self._add(statement)

    def _add(self, statement: tirx.DeclBuffer | tirx.AllocBuffer) -> None:
        buffer = statement.buffer
        if not str(buffer.dtype).startswith(HALF) or buffer in self.textures:
            return
        if isinstance(statement, tirx.AllocBuffer):
            kept = any(map(buffer.same_as, [*self.rounded, *self.reused]))
            exact = buffer.scope() == "local" and not kept  # other scopes are scarce
            into, dtype = (self.floats, FLOAT) if exact else (self.words, "uint16")
            dtype = str(buffer.dtype).replace(HALF, dtype) if exact else dtype
            into[buffer] = tirx.decl_buffer(buffer.shape, dtype, buffer.name, scope=buffer.scope())
        elif statement.data in self.params:
            self.words[buffer] = tirx.decl_buffer(buffer.shape, "uint16", buffer.name, self.params[statement.data])
        elif buffer in self.places:
            self.words[buffer] = tirx.decl_buffer(buffer.shape, "uint16", buffer.name, scope=buffer.scope())

    def rewritten(self) -> tirx.PrimFunc:
        # Rewrite reads first: a written value may be a float computed from them.
        body = tvm_ffi.structural_map(self.func.body, (tirx.Cast, self._read))
        body = tvm_ffi.structural_map(body, ((ir.Call, self._write_texel), (tirx.BufferStore, self._write)))
        body = tvm_ffi.structural_map(body, ((tirx.DeclBuffer, tirx.AllocBuffer), self._declare))
        params = [self.params.get(param, param) for param in self.func.params]
        new = tirx.PrimFunc(params, with_rounding(body), self.func.ret_type, self.func.attrs)
        return self.func if _has_half(new) else new  # the kernel computes with halves, or a buffer of halves is left

    def _declare(self, statement: tirx.DeclBuffer | tirx.AllocBuffer) -> tirx.Stmt:
        buffer = statement.buffer
        if isinstance(statement, tirx.AllocBuffer):
            new = self.floats.get(buffer, self.words.get(buffer))
            return statement if new is None else tirx.AllocBuffer(new, statement.annotations)
        if buffer in self.places:
            root, new = self.places[buffer], self.words.get(buffer, buffer)
            return tirx.DeclBuffer(new, data=self.words[root].data if root in self.words else statement.data)
        if buffer in self.words:
            return tirx.DeclBuffer(self.words[buffer], data=self.params[statement.data])
        return tirx.Evaluate(tirx.const(0, "int32")) if buffer in self.textures else statement

    def _read(self, cast: tirx.Cast) -> ir.Expr:
        value = cast.value
        if not _is_half(value.ty):
            return cast
        if isinstance(value, tirx.Cast) and self._rounds(value):
            return rounded(value.value).astype(cast.ty.dtype)
        widened = self._widen(value)
        return cast if widened is None else widened.astype(cast.ty.dtype)

    def _rounds(self, cast: tirx.Cast) -> bool:
        """Whether a function has to round the number to half, as the device has no type for the result."""
        return not self.extended and _element(cast.value.ty) in SUFFIXES

    def _write_texel(self, call: ir.Call) -> ir.Call:
        if not call.op.same_as(TEXTURE_STORE) or texture_of(call) not in self.textures:
            return call
        value = self._widen(call.args[5], rounds=True)
        return call if value is None else self._access(call, value)

    def _write(self, store: tirx.BufferStore) -> tirx.Stmt:
        local = store.buffer in self.floats
        value = self._widen(store.value, rounds=not local) if local or store.buffer in self.words else None
        if value is None:
            return store
        if local:
            return tirx.BufferStore(self.floats[store.buffer], value, store.indices)
        return self._store(store.buffer, store.indices[0], value)

    def _widen(self, value: ir.Expr, rounds: bool = False) -> ir.Expr | None:
        """Return the float with exactly the value of an expression of halves, or None.

        Parameters
        ----------
        rounds : bool
            The value is rounded to half afterwards, so that an earlier rounding can be left out.
        """
        if isinstance(value, tirx.FloatImm):
            return tirx.FloatImm(FLOAT, value.value)
        if isinstance(value, tirx.Cast):
            if _element(value.value.ty) == FLOAT:
                return value.value if rounds else None
            return rounded(value.value) if self._rounds(value) else None
        if isinstance(value, ir.TensorLoad):
            return self._load(value)
        if isinstance(value, ir.Call) and value.op.same_as(TEXTURE_LOAD):
            return self._access(value, value.args[5])
        if isinstance(value, tirx.Broadcast):
            parts, build = [value.value], lambda x: tirx.Broadcast(x, value.lanes)
        elif isinstance(value, tirx.Select):
            parts = [value.true_value, value.false_value]
            build = lambda x, y: tirx.Select(value.condition, x, y)  # noqa: E731
        elif is_if_then_else(value):
            parts, build = list(value.args)[1:], lambda x, y: tirx.if_then_else(value.args[0], x, y)
        elif isinstance(value, _EXACT):
            parts, build = [value.a, value.b], type(value)
        else:
            return None
        wide = [self._widen(part, rounds) for part in parts]
        return None if None in wide else build(*wide)

    def _load(self, load: ir.TensorLoad) -> ir.Expr | None:
        if load.source in self.floats:
            return tirx.BufferLoad(self.floats[load.source], load.indices)
        if load.source not in self.words:
            return None
        (index,) = load.indices
        if _is_contiguous(index):
            suffix, *place = self._place(load.source, index)
            return tirx.call_pure_extern(_as_float(load.ty), f"vload_half{suffix}", *place)
        places = [self._place(load.source, lane(index, number))[1:] for number in range(lanes_of(index))]
        return vector([tirx.call_pure_extern(FLOAT, "vload_half", *place) for place in places])

    def _store(self, buffer: tirx.Var, index: ir.Expr, value: ir.Expr) -> tirx.Stmt:
        if _is_contiguous(index):
            suffix, *place = self._place(buffer, index)
            return tirx.Evaluate(tirx.call_extern("int32", f"vstore_half{suffix}", value, *place))
        whole = tirx.Var("lanes", str(value.ty.dtype))
        stored = [
            tirx.call_extern("int32", "vstore_half", lane(whole, number), *self._place(buffer, lane(index, number))[1:])
            for number in range(lanes_of(index))
        ]
        return tirx.SeqStmt([tirx.Bind(whole, value), *map(tirx.Evaluate, stored)])

    def _place(self, buffer: tirx.Var, index: ir.Expr) -> tuple[str, ir.Expr, ir.Expr]:
        """Return the place for vload_half and vstore_half: a suffix, an offset in vectors, the base address."""
        lanes = tvm_ffi.dtype(str(buffer.dtype)).lanes
        if isinstance(index, tirx.Ramp):
            suffix, offset, first = str(index.lanes), 0, index.base * lanes
        else:
            suffix, offset, first = str(lanes) if lanes > 1 else "", index, 0
        word = tirx.BufferLoad(self.words[buffer], [first])
        # Typed as an integer, because TVM's code generator would put a handle into the private address space.
        pointer = f"({_SPACES[buffer.scope()]} half*)"
        return suffix, offset, tirx.call_pure_extern("uint64", pointer, tirx.address_of(word))

    def _access(self, call: ir.Call, last: ir.Expr) -> ir.Call:
        """Return the same access to a texture of floats; `last` is the lane index of a read or the value of a write."""
        dtype = "int32" if call.op.same_as(TEXTURE_STORE) else _as_float(call.ty)
        bits = tirx.const(TEXEL * 32, "int32")
        return tirx.call_intrin(dtype, call.op, self.textures[texture_of(call)], *list(call.args)[1:4], bits, last)


def _is_contiguous(index: ir.Expr) -> bool:
    """Whether the lanes of an index are consecutive; true of a scalar."""
    ramp = isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1
    return ramp or lanes_of(index) == 1


def _has_half(func: tirx.PrimFunc) -> bool:
    params = any(_mentions_half(param.ty) for param in func.params)
    return params or contains(func.body, ir.Expr, lambda each: _mentions_half(each.ty))


def _computes_in_half(body: tirx.Stmt) -> bool:
    """Whether arithmetic that rounds gives a half, so that no float can take its place."""
    return contains(body, _ROUNDING, lambda each: _is_half(each.ty))


def _rounded(body: tirx.Stmt) -> list:
    """Return the buffers of halves into which a float is rounded."""

    def rounds(cast: tirx.Cast) -> bool:
        return _is_half(cast.ty) and not _is_half(cast.value.ty)

    return [store.buffer for store in stores(body) if contains(store.value, tirx.Cast, rounds)]


def _mentions_half(ty: ir.Type) -> bool:
    if isinstance(ty, ir.PointerType):
        return _is_half(ty.element_type)
    return _is_half(ty) or (isinstance(ty, tirx.BufferType) and str(ty.dtype).startswith(HALF))


def _is_half(ty: ir.Type) -> bool:
    return _element(ty) == HALF


def _element(ty: ir.Type) -> str | None:
    """Return the element type of a scalar or vector."""
    return str(ty.dtype).split("x")[0] if isinstance(ty, ir.PrimType) else None


def _as_float(ty: ir.PrimType) -> str:
    return str(ty.dtype).replace(HALF, FLOAT)

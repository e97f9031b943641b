# SPDX-License-Identifier: Apache-2.0
"""ComputeSingle: float16 arithmetic done in float32, on OpenCL devices without float16 arithmetic."""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from ..._tvm import TEXTURE_LOAD, TEXTURE_STORE
from ...ir.half import FLOAT, HALF
from ...ir.index_map import is_if_then_else
from ...ir.memory import memory_of
from ...ir.walk import collect, contains, loads, stores
from ...target import has_half_arithmetic

_ROUNDED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_CHOSEN = (tirx.Max, tirx.Min)
# Operators that need the bits or the address of a half.
_UNTOUCHED = tuple(map(ir.Op.get, ("tirx.reinterpret", "tirx.address_of", "tirx.tvm_access_ptr")))


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.ComputeSingle")
class ComputeSingle:
    """Compute with halves as floats, in kernels (after the split from the host) for devices without ``cl_khr_fp16``.

    Before::

        acc[0] = acc[0] + A[i] * B[i]                           # all of float16
        C[j] = exp(acc[0])

    After::

        acc[0] = acc[0] + float(A[i]) * float(B[i])             # a register of float32
        C[j] = half(exp(float(half(acc[0]))))

    Each result is rounded to half, as if it had been computed in half. Float32 has more than twice its digits, so that
    a sum, product, quotient or root rounded twice equals the one rounded once (Figueroa, 1995). An accumulator in a
    register is rounded when it is read. `HalfStorage` then makes code that needs no type ``half``. Kernels that need
    the bits or the address of a half stay as they are.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel; kernels for targets other than OpenCL stay as they are."""
        target = (func.attrs or {}).get("target")
        if target is None or target.kind.name != "opencl" or has_half_arithmetic(target):
            return func
        calls = [call for call in collect(func.body, ir.Call) if any(map(call.op.same_as, _UNTOUCHED))]
        if any(_is_half(part.ty) for call in calls for part in (call, *call.args)):
            return func
        if not contains(func.body, ir.Expr, lambda each: _is_half(each.ty)):
            return func
        return _Kernel(func).rewritten()


class _Kernel:
    """Rewriter of one kernel: its variables and registers of halves become floats, other loads of halves are cast."""

    def __init__(self, func: tirx.PrimFunc):
        self.func = func
        self.registers, self.vars, self.places = {}, {}, memory_of(func.body)
        mixed = [root for buffer, root in self.places.items() if not str(buffer.dtype).startswith(HALF)]
        for buffer, root in self.places.items():
            if root.scope() == "local" and not any(map(root.same_as, mixed)):
                wide = str(buffer.dtype).replace(HALF, FLOAT)
                self.registers[buffer] = tirx.decl_buffer(buffer.shape, wide, buffer.name, scope="local")
        for bind in collect(func.body, (tirx.Bind, tirx.Let)):
            if _is_half(bind.var.ty):
                self.vars[bind.var] = tirx.Var(bind.var.name, _single(bind.var.ty))
        self.sums = [s.buffer for s in stores(func.body) if s.buffer in self.registers and _adds(s)]

    def rewritten(self) -> tirx.PrimFunc:
        rules = [
            (tirx.FloatImm, self._number),
            (tirx.Cast, self._cast),
            (ir.TensorLoad, self._load),
            (ir.Call, self._call),
            (_ROUNDED, lambda node: _rounded(type(node)(node.a, node.b)) if _is_half(node.ty) else node),
            (_CHOSEN, lambda node: type(node)(node.a, node.b) if _is_half(node.ty) else node),
            (tirx.Select, self._select),
            (tirx.Broadcast, lambda node: tirx.Broadcast(node.value, node.lanes) if _is_half(node.ty) else node),
            (tirx.Shuffle, lambda node: tirx.Shuffle(node.vectors, node.indices) if _is_half(node.ty) else node),
            (tirx.Var, lambda var: self.vars.get(var, var)),
            (tirx.Let, lambda let: tirx.Let(let.var, let.value, let.body) if _is_half(let.ty) else let),
            (tirx.BufferStore, self._store),
            ((tirx.AllocBuffer, tirx.DeclBuffer), self._declare),
        ]
        return self.func.with_body(tvm_ffi.structural_map(self.func.body, rules))

    def _number(self, number: tirx.FloatImm) -> tirx.FloatImm:
        with np.errstate(over="ignore"):
            return tirx.FloatImm(FLOAT, float(np.float16(number.value))) if _is_half(number.ty) else number

    def _cast(self, cast: tirx.Cast) -> ir.Expr:
        if not _is_half(cast.ty):
            return cast.value.astype(cast.ty.dtype)
        exact = _element(cast.value.ty) in (FLOAT, "float64")
        return _rounded(cast.value if exact else cast.value.astype(_single(cast.ty)))

    def _load(self, load: ir.TensorLoad) -> ir.Expr:
        if not _is_half(load.ty):
            return load
        register = self.registers.get(load.source)
        if register is None:
            return tirx.Cast(_single(load.ty), load)
        value = tirx.BufferLoad(register, load.indices)
        return _rounded(value) if load.source in self.sums else value

    def _call(self, call: ir.Call) -> ir.Expr:
        if call.op.same_as(TEXTURE_STORE):
            *place, value = call.args
            return tirx.call_intrin(call.ty.dtype, call.op, *place, _narrow(value)) if _holds_half(place[0]) else call
        if not _is_half(call.ty):
            return call
        if call.op.same_as(TEXTURE_LOAD):
            return tirx.Cast(_single(call.ty), call)
        value = tirx.call_intrin(_single(call.ty), call.op, *call.args)
        return value if is_if_then_else(call) else _rounded(value)

    def _select(self, node: tirx.Select) -> ir.Expr:
        return tirx.Select(node.condition, node.true_value, node.false_value) if _is_half(node.ty) else node

    def _store(self, store: tirx.BufferStore) -> tirx.Stmt:
        register = self.registers.get(store.buffer)
        if register is not None:
            value = self._exact(store.value) if store.buffer in self.sums else store.value
            return tirx.BufferStore(register, value, store.indices)
        if not str(store.buffer.dtype).startswith(HALF):
            return store
        return tirx.BufferStore(store.buffer, _narrow(store.value), store.indices)

    def _exact(self, value: ir.Expr) -> ir.Expr:
        """Return a term of a sum without the roundings in it."""
        sums = [self.registers[buffer] for buffer in self.sums]

        def exact(cast: tirx.Cast) -> ir.Expr:
            inner = _before_rounding(cast)
            computed = isinstance(inner, (*_ROUNDED, ir.Call))
            summed = isinstance(inner, ir.TensorLoad) and any(map(inner.source.same_as, sums))
            return inner if computed or summed else cast

        return tvm_ffi.structural_map(value, (tirx.Cast, exact))

    def _declare(self, statement: tirx.AllocBuffer | tirx.DeclBuffer) -> tirx.Stmt:
        register = self.registers.get(statement.buffer)
        if register is None:
            return statement
        if isinstance(statement, tirx.AllocBuffer):
            return tirx.AllocBuffer(register, statement.annotations)
        return tirx.DeclBuffer(register, data=self.registers[self.places[statement.buffer]].data)


def _adds(store: tirx.BufferStore) -> bool:
    """Whether a store adds a value to the element that it overwrites."""
    return isinstance(store.value, tirx.Add) and any(each.source.same_as(store.buffer) for each in loads(store.value))


def _rounded(value: ir.Expr) -> ir.Expr:
    """Return a float with the value of the nearest half."""
    half = str(value.ty.dtype).replace(_element(value.ty), HALF)
    return tirx.Cast(half.replace(HALF, FLOAT), tirx.Cast(half, value))


def _before_rounding(value: ir.Expr) -> ir.Expr | None:
    """Return the operand of `_rounded`, None for any other expression."""
    half = value.value if isinstance(value, tirx.Cast) and _element(value.ty) == FLOAT else None
    return half.value if isinstance(half, tirx.Cast) and _is_half(half.ty) else None


def _narrow(value: ir.Expr) -> ir.Expr:
    """Return a float as a half, rounded if it is not one already."""
    if isinstance(value, tirx.Cast) and _is_half(value.value.ty):
        return value.value
    return tirx.Cast(str(value.ty.dtype).replace(FLOAT, HALF), value)


def _holds_half(texture: ir.Expr) -> bool:
    return isinstance(texture.ty, ir.PointerType) and _is_half(texture.ty.element_type)


def _is_half(ty: ir.Type) -> bool:
    return _element(ty) == HALF


def _element(ty: ir.Type) -> str | None:
    """Return the element type of a scalar or vector."""
    return str(ty.dtype).split("x")[0] if isinstance(ty, ir.PrimType) else None


def _single(ty: ir.PrimType) -> str:
    return str(ty.dtype).replace(HALF, FLOAT)

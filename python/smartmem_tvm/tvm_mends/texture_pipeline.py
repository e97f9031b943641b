# SPDX-License-Identifier: Apache-2.0
"""Work-arounds for TVM's texture pipeline; `lowering` has those for the lowering of kernels.

``tests/deploy/test_tvm_pipelines.py`` fails when a newer TVM makes one of them unnecessary.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import SBlock, SBlockRealize

from ..errors import UserError
from ..ir.graph import CALL_TIR
from ..ir.rewrite_calls import rewrite_calls
from ..ir.walk import collect, contains
from ..schedule import ScheduleKernels
from ..schedule.core.rule import SCHEDULED
from ..transform.layout.check_textures import CheckTextures

# TVM's schedule recognises a convolution in textures by this name.
_CONVOLUTION = "conv2d_NCHWc_OIHWo"


@tvm.transform.module_pass(opt_level=0, name="smartmem.OwnNodes")
class OwnNodes:
    """Work-around: a copy of each Relax function with variables and constants of its own, for passes to write into.

    TVM's pass writes memory scopes into the parameters and constants that it finds. They belong to the caller, whose
    module could afterwards be compiled for no other target. The data of the constants are not copied.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        new = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                apart = tvm_ffi.structural_map(
                    func, (ir.GenericConst, lambda each: ir.GenericConst(each.value, each.ty))
                )
                new[gvar] = relax.utils.copy_with_new_vars(apart)
        return new


@tvm.transform.module_pass(opt_level=0, name="smartmem.SplitByScope")
class SplitByScope:
    """Work-around: calls that want tensors in other memory get a kernel of their own.

    Before::

        y: texture = call_tir(add, (a, b));     z: buffer = call_tir(add, (y, b))

    After::

        y: texture = call_tir(add, (a, b));     z: buffer = call_tir(add1, (y, b))

    TVM gives the parameters of a kernel the memory scopes of its last call: with ``add`` for both calls, the first one
    writes a texture as if it were a buffer.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Splitting(mod))


@mutator
class _Splitting(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.mod, self.kernels = mod, {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != CALL_TIR:
            return call
        kernel, values = call.args[0], call.args[1]
        scopes = " ".join(_scope(ty) for ty in (*(each.ty for each in values.fields), *_tensors(call.ty)))
        known = self.kernels.setdefault(kernel, {})
        if scopes not in known:
            known[scopes] = self._copy(kernel, scopes) if known else kernel
        return relax.op.call_tir(known[scopes], values, out_ty=_one_or_all(_tensors(call.ty)))

    def _copy(self, kernel: relax.GlobalVar, scopes: str) -> relax.GlobalVar:
        # Without a different attribute the builder would merge equal kernels.
        return self.builder_.add_func(self.mod[kernel].with_attr("smartmem.scopes", scopes), kernel.name_hint)


def _tensors(ty) -> list:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _one_or_all(tys: list):
    return tys[0] if len(tys) == 1 else tys


def _scope(ty) -> str:
    device = getattr(ty, "vdevice", None)
    return str(device.memory_scope) if device is not None else "global"


@tvm.transform.module_pass(opt_level=0, name="smartmem.ScheduleTexels")
class ScheduleTexels:
    """Work-around: kernels that write single numbers of texels get this package's schedules.

    Before::

        for f in T.thread_binding(n): B[f // 4, f % 4] = A[f]     # B a texture: four threads write a texel

    After::

        for f in T.thread_binding(n // 4):
            for v in T.vectorized(4): B[f, v] = A[f * 4 + v]

    TVM's fallback schedule gives each number a thread. This pass schedules the blocks again that TVM has left in loops
    of their own. Leaves kernels as they are that `CheckTextures` accepts, that keep a buffer between blocks, or that no
    rule of this package writes texel by texel.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`."""
        new = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and not _writes_texels(func):
                open_again = unscheduled(func)
                scheduled = ScheduleKernels()(tvm.IRModule({gvar: open_again}))[gvar] if open_again else func
                if _writes_texels(scheduled):
                    new[gvar] = scheduled
        return new


def _writes_texels(func: tirx.PrimFunc) -> bool:
    try:
        CheckTextures()(tvm.IRModule({"it": func}))
    except UserError:
        return False
    return True


def unscheduled(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the blocks of a scheduled function, each in loops of its own; None if the function has more than these."""
    if not isinstance(func.body, SBlockRealize):
        return None
    blocks = [each.block for each in collect(func.body, SBlockRealize)]
    inner = [block for block in blocks if not contains(block.body, SBlockRealize)]
    fixed = all(isinstance(it.dom.extent, tirx.IntImm) and int(it.dom.min) == 0 for b in inner for it in b.iter_vars)
    if not fixed or any(block.alloc_buffers or block.match_buffers for block in blocks):
        return None
    root = SBlock([], [], [], "root", tirx.SeqStmt(list(map(_nest, inner))) if len(inner) > 1 else _nest(inner[0]))
    made = func.with_body(SBlockRealize([], True, root))
    return made.without_attr(SCHEDULED) if SCHEDULED in (func.attrs or {}) else made


def _nest(block: SBlock) -> tirx.Stmt:
    loops = [tirx.Var(it.var.name, it.var.ty.dtype) for it in block.iter_vars]
    body: tirx.Stmt = SBlockRealize(loops, True, block)
    for var, it in reversed(list(zip(loops, block.iter_vars, strict=True))):
        body = tirx.For(var, it.dom.min, it.dom.extent, tirx.ForKind.SERIAL, body)
    return body


def convolve_narrow_groups(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Work-around, for ``LegalizeOps``: grouped convolutions in textures whose groups are parts of a texel.

    For a depthwise convolution TVM divides the number of channel texels by that of groups, and then divides by the
    quotient, which is 0. Any other convolution is returned as it is.
    """
    attrs, weight = call.attrs, list(map(int, call.args[1].ty.shape))
    groups = int(attrs.groups)
    if attrs.data_layout != "NCHW4c" or weight[0] % groups == 0:
        return call
    padding, strides, dilation = (tuple(map(int, each)) for each in (attrs.padding, attrs.strides, attrs.dilation))
    how = (groups, strides, padding, dilation)
    return builder.call_te(_grouped, *call.args, *how, primfunc_name_hint=_CONVOLUTION)


def _grouped(
    data: te.Tensor,
    weight: te.Tensor,
    groups: int,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """Return a grouped convolution of texels, for any number of channels in a group."""
    batch, _, height, width, lanes = map(int, data.shape)
    blocks, each, kernel_y, kernel_x, out_lanes = map(int, weight.shape)
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    padded = topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0), name="padded") if any(padding) else data
    high = (height + top + bottom - dilation[0] * (kernel_y - 1) - 1) // strides[0] + 1
    wide = (width + left + right - dilation[1] * (kernel_x - 1) - 1) // strides[1] + 1
    c, y, x = te.reduce_axis((0, each), "c"), te.reduce_axis((0, kernel_y), "y"), te.reduce_axis((0, kernel_x), "x")
    group = blocks * out_lanes // groups

    def value(n, block, row, column, lane):
        channel = (block * out_lanes + lane) // group * each + c
        place = (row * strides[0] + y * dilation[0], column * strides[1] + x * dilation[1])
        factor = weight[block, c, y, x, lane]
        return te.sum(padded(n, channel // lanes, *place, channel % lanes) * factor, axis=[c, y, x])

    return te.compute((batch, blocks, high, wide, out_lanes), value, name=_CONVOLUTION)

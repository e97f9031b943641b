# SPDX-License-Identifier: Apache-2.0
"""CheckTextures: refuse textures that OpenCL cannot hold, before kernels are lowered."""

from __future__ import annotations

import logging

import tvm
from tvm import ir, relax, sym, tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...errors import UserError
from ...ir.index_map import variables
from ...ir.kernel import substitute
from ...ir.texels import is_texture
from ...ir.walk import collect, stores
from ...planner.texture_form import TEXEL

_logger = logging.getLogger(__name__)
CHANNELS = ("float32", "float16", "int32", "int16", "int8", "uint32", "uint16", "uint8")
# Memory scope -> the least number of dimensions: those that the scope maps to the image, and the texel.
SCOPES = {"global.texture": 3, "global.texture-weight": 2, "global.texture-nhwc": 3}


@tvm.transform.module_pass(opt_level=0, name="smartmem.CheckTextures")
class CheckTextures:
    """Refuse textures that would end in an assertion of TVM, a driver's error, or wrong numbers.

    A texture must be a parameter of a kernel. Its innermost dimension is one texel of four numbers, its element type is
    one that images have (`CHANNELS`), and kernels write whole texels: for a single number TVM would print
    ``write_imagef(B, xyz, x)``, which fills the texel with it. A texture must not be reshaped: the result would be the
    same image.

    Parameters
    ----------
    refuse : bool
        Raise an error. Otherwise give a warning for each kernel that breaks a rule, as TVM may have made it.
    """

    def __init__(self, refuse: bool = True):
        self.refuse = refuse

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Check every PrimFunc of `mod`, all of them scheduled; `mod` is returned as it is.

        Raises
        ------
        UserError
            For the first texture that breaks a rule, if `refuse` is set.
        """
        for gvar, func in mod.functions.items():
            try:
                _check_function(gvar.name_hint, func)
            except UserError as error:
                if self.refuse:
                    raise
                _logger.warning("its result may be wrong: %s", error)
        return mod


def _check_function(name: str, func: relax.Function | tirx.PrimFunc) -> None:
    if isinstance(func, relax.Function):
        _check_views(func)
    if isinstance(func, tirx.PrimFunc):
        for param in func.params:
            if isinstance(param.ty, tirx.BufferType) and is_texture(param):
                _check(name, param)
        _check_locals(name, func)
        _check_stores(name, func)


def _check_views(func: relax.Function) -> None:
    """Refuse reshaped textures: they would be the same image, read at the places of another one."""
    calls: list = []
    relax.analysis.post_order_visit(func, lambda expr: calls.append(expr) if isinstance(expr, ir.Call) else None)
    for call in calls:
        name = getattr(call.op, "name", None) or getattr(call.op, "global_symbol", "")
        if name in ("relax.reshape", "vm.builtin.reshape") and _in_texture(call.args[0]):
            shape = ", ".join(str(int(d)) for d in call.args[0].ty.shape)
            raise UserError(
                f"a texture of shape ({shape}) is reshaped, which does not move its texels: write the new shape by a "
                f"kernel (call_tir), or keep the tensor in a buffer."
            )


def _in_texture(value: relax.Expr) -> bool:
    vdevice = getattr(value.ty, "vdevice", None)
    return vdevice is not None and "texture" in vdevice.memory_scope


def _check_locals(kernel: str, func: tirx.PrimFunc) -> None:
    for buffer in (buffer for block in collect(func.body, SBlock) for buffer in block.alloc_buffers):
        if is_texture(buffer):
            raise UserError(
                f"kernel '{kernel}' allocates texture '{buffer.name}' for itself, which TVM cannot lower for OpenCL: "
                f"make it a tensor that one kernel writes and another one reads."
            )


def _check_stores(kernel: str, func: tirx.PrimFunc) -> None:
    written = [store for store in stores(func.body) if is_texture(store.buffer)]
    whole = [store for loop in collect(func.body, tirx.For) for store in _texels(loop)] if written else []
    for store in written:
        if store not in whole and not isinstance(store.indices[-1], tirx.Ramp):
            raise UserError(
                f"kernel '{kernel}' does not write texture '{store.buffer.name}' texel by texel, as images want it: "
                f"vectorize the loop over its innermost dimension, and no other."
            )


def _texels(loop: tirx.For) -> list[tirx.BufferStore]:
    """Return the stores in a vectorized loop that write a texel at a time."""
    if loop.kind != tirx.ForKind.VECTORIZED or int(loop.extent) != TEXEL:
        return []
    analyzer = sym.Analyzer()
    analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))

    def is_texel(store: tirx.Stmt, values: dict) -> bool:
        if not isinstance(store, tirx.BufferStore) or not is_texture(store.buffer):
            return False
        *place, lane = [analyzer.simplify(substitute(index, values)) for index in store.indices]
        elsewhere = any(loop.loop_var in variables(index) for index in place)
        return not elsewhere and analyzer.can_prove_equal(lane, loop.loop_var)

    # A schedule written by hand has no blocks around its stores.
    candidates = [(loop.body, {})]
    for realize in collect(loop.body, SBlockRealize):
        values = {it.var: value for it, value in zip(realize.block.iter_vars, realize.iter_values)}
        candidates.append((realize.block.body, values))
    return [store for store, values in candidates if is_texel(store, values)]


def _check(kernel: str, texture: tirx.Var) -> None:
    what = f"kernel '{kernel}': texture '{texture.name}'"
    shape, dtype, scope = list(texture.shape), str(texture.dtype), texture.scope()
    if scope not in SCOPES:
        raise UserError(f"{what} has memory scope '{scope}', which TVM does not know: use one of {', '.join(SCOPES)}.")
    if dtype not in CHANNELS:
        raise UserError(
            f"{what} has elements of type {dtype}, which no image has: use one of {', '.join(CHANNELS)}, or a buffer."
        )
    if not shape or not isinstance(shape[-1], tirx.IntImm) or int(shape[-1]) != TEXEL:
        raise UserError(
            f"{what} has shape ({_text(shape)}), whose innermost dimension is not a texel of {TEXEL} "
            f"numbers: split a dimension by {TEXEL}, padded if it is not a multiple, and put the {TEXEL} last."
        )
    if len(shape) < SCOPES[scope]:
        raise UserError(
            f"{what} has {len(shape)} dimensions, and scope {scope} needs {SCOPES[scope]} at least, the innermost for "
            f"the texel: add a dimension of 1, or use another scope."
        )


def _text(shape: list) -> str:
    return ", ".join(str(int(n)) if isinstance(n, tirx.IntImm) else str(n) for n in shape)

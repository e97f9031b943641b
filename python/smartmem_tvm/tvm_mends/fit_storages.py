# SPDX-License-Identifier: Apache-2.0
"""FitStorages: each planned storage gets the size of the largest tensor in it."""

from __future__ import annotations

from math import prod

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..ir.sizes import number_bytes
from ..ir.walk import collect
from ..planner.texture_form import TEXEL
from ..target import LEAST_ALIGNMENT, image_alignment

# Memory scope -> the first dimension that lies within a row of an image.
_COLUMNS = {"global.texture": -2, "global.texture-weight": 1, "global.texture-nhwc": 2}


@tvm.transform.module_pass(opt_level=0, name="smartmem.FitStorages")
class FitStorages:
    """Give each planned storage that holds a texture the bytes that the largest tensor in it takes.

    Before (``a`` has 16 * 56 rows of 56 texels, 802,816 bytes)::

        storage = R.memory.alloc_storage(R.shape([3670016]), ...)
        a = R.memory.alloc_tensor(storage, 0, R.shape([1, 16, 56, 56, 4]), ...)     # opencl, global.texture

    After (rows are padded to 64 texels)::

        storage = R.memory.alloc_storage(R.shape([917504]), ...)

    TVM multiplies the bytes of a texture by the size of an element once more. The bytes before that are too few for
    narrow images, whose rows begin at multiples of the device's pitch where the images are views of a buffer. The
    target gives the pitch: ``image_base_address_alignment``, for texels of four float32, in bytes (see `row_bytes`).

    To be run after ``StaticPlanBlockMemory`` and before memory is lowered any further. Leaves storages as they are that
    hold no texture, or a tensor of unknown shape.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        fitted = {g: _fit(func) for g, func in mod.functions_items() if isinstance(func, relax.Function)}
        mod = mod.clone()
        for gvar, func in fitted.items():
            mod.update_func(gvar, func)
        return mod


def bytes_on_device(ty: relax.TensorType) -> int:
    """Return the memory that a tensor takes at the beginning of a buffer on its device.

    Parameters
    ----------
    ty : relax.TensorType
        A type of constant shape; in a texture if its ``vdevice`` says so.

    Returns
    -------
    int
        Bytes; for a texture those of all its rows, each padded to the pitch.
    """
    shape, number = [int(dim) for dim in ty.shape], number_bytes(str(ty.dtype))
    if not _in_texture(ty):
        return prod(shape) * number
    at = _COLUMNS[ty.vdevice.memory_scope]
    return prod(shape[:at]) * row_bytes(prod(shape[at:-1]), number, image_alignment(ty.vdevice.target))


def row_bytes(texels: int, number: int, alignment: int) -> int:
    """Return the bytes from one row of an image to the next.

    Parameters
    ----------
    texels : int
        Texels of a row.
    number : int
        Bytes of a number; a texel has four numbers.
    alignment : int
        The device's pitch in bytes for float32 numbers; devices count it in texels.
    """
    pitch = max(LEAST_ALIGNMENT, alignment * number // 4)
    return -(-texels * TEXEL * number // pitch) * pitch


def _fit(func: relax.Function) -> relax.Function:
    tensors: dict[relax.Var, list[relax.TensorType]] = {}
    for binding in collect(func, relax.VarBinding):
        if _allocates(binding.value, "tensor"):
            tensors.setdefault(binding.value.args[0], []).append(binding.var.ty)

    def fit(binding: relax.VarBinding) -> relax.VarBinding:
        held = tensors.get(binding.var, ())
        if not _allocates(binding.value, "storage") or not any(map(_in_texture, held)) or not all(map(_static, held)):
            return binding
        storage = binding.value
        size = relax.ShapeExpr([max(map(bytes_on_device, held))])
        call = relax.Call(storage.op, [size, *list(storage.args)[1:]], storage.attrs)
        return relax.VarBinding(binding.var, relax.BlockBuilder().normalize(call))

    return tvm_ffi.structural_map(func, (relax.VarBinding, fit))


def _allocates(value: relax.Expr, what: str) -> bool:
    return isinstance(value, ir.Call) and getattr(value.op, "name", "") == f"relax.memory.alloc_{what}"


def _in_texture(ty: relax.TensorType) -> bool:
    return ty.vdevice is not None and ty.vdevice.memory_scope in _COLUMNS


def _static(ty: relax.TensorType) -> bool:
    return ty.shape is not None and all(isinstance(dim, tirx.IntImm) for dim in ty.shape)

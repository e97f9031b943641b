# SPDX-License-Identifier: Apache-2.0
"""Reinterpret the bits of numbers as another type: ``tensor.view(dtype)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

if TYPE_CHECKING:
    import torch

BIT_CAST = "smartmem::BitCast"  # ONNX's own is of a later opset than torch's exporter writes


def view_as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``torch.Tensor.view(dtype)``: one number becomes several of a narrower type, or several become a wider one."""
    import torch

    if x.dtype == dtype:
        return x.clone()
    if x.dtype == torch.bfloat16:  # the upper half of a float32: TVM does not vectorize its bit casts
        return view_as(torch.bitwise_right_shift(view_as(x.float(), torch.int32), 16).to(torch.int16), dtype)
    if dtype == torch.bfloat16:
        upper = torch.bitwise_left_shift(view_as(x, torch.int16).to(torch.int32), 16)
        return view_as(upper, torch.float32).to(torch.bfloat16)
    if x.element_size() == dtype.itemsize:
        to = helper.np_dtype_to_tensor_dtype(np.dtype(str(dtype).removeprefix("torch.")))
        return torch.onnx.ops.symbolic(BIT_CAST, (x,), {"to": to}, dtype=dtype, shape=x.shape, version=1)
    narrow = min(x.element_size(), dtype.itemsize)
    count = max(x.element_size(), dtype.itemsize) // narrow
    steps = torch.arange(count) * (8 * narrow)
    bits = view_as(x, _integer(x.element_size())).to(torch.int64)
    if x.element_size() > narrow:
        parts = torch.bitwise_right_shift(bits.unsqueeze(-1), steps) & (2 ** (8 * narrow) - 1)
        found = parts.flatten(-2)
    else:
        parts = bits.unflatten(-1, (-1, count)) & (2 ** (8 * narrow) - 1)
        found = torch.bitwise_left_shift(parts, steps).sum(-1)
    return view_as(found.to(_integer(dtype.itemsize)), dtype)


def _integer(size: int) -> torch.dtype:
    """Return the integer type of `size` bytes; a number that is too large for it wraps."""
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]


FORMS = {"aten.view.dtype": view_as}

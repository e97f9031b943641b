# SPDX-License-Identifier: Apache-2.0
"""Reductions and scans in the types in which torch computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CUMULATED_PRODUCT = "smartmem::CumProd"  # ONNX's own is newer than what torch's exporter writes


def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.cumprod``: whole numbers are 64 bits wide, and halves are rounded once."""
    import torch

    if dtype is None:
        dtype = x.dtype if x.is_floating_point() else torch.int64
    if x.ndim == 0:
        return x.to(dtype)
    wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else torch.int64
    x, axis = x.to(dtype).to(wide), torch.full((), dim % x.ndim)
    found = torch.onnx.ops.symbolic(CUMULATED_PRODUCT, (x, axis), dtype=wide, shape=x.shape, version=1)
    return found.to(dtype)


def extremum(name: str) -> Callable:
    """``torch.amax`` and ``torch.amin``: no dimensions are all of them."""

    def form(x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> torch.Tensor:
        import torch

        if x.ndim == 0:
            return x.clone()
        return NotImplemented if dim else getattr(torch, name)(x, list(range(x.ndim)), keepdim)

    return form


def truth(name: str) -> Callable:
    """``torch.any`` and ``torch.all``: of bytes they are bytes."""

    def form(x: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        import torch

        return getattr(torch, name)(x != 0, *args, **options).to(x.dtype) if x.dtype == torch.uint8 else NotImplemented

    return form


def nansum(
    x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``torch.nansum``: whole numbers are all numbers."""
    import torch

    return NotImplemented if x.is_floating_point() else torch.sum(x, dim, keepdim, dtype=dtype)


FORMS = {
    "aten.nansum.default": nansum,
    "aten.amax.default": extremum("amax"),
    "aten.amin.default": extremum("amin"),
    "aten.cumprod.default": cumprod,
    **{f"aten.{name}.{which}": truth(name) for name in ("all", "any") for which in ("default", "dim", "dims")},
}

# SPDX-License-Identifier: Apache-2.0
"""Reductions and scans in the types in which torch computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CUMULATED_PRODUCT = "smartmem::CumProd"  # ONNX's own is of a later opset than torch's exporter writes


def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.cumprod``: integers are computed in 64 bits, and halves are rounded once."""
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
    """``torch.amax`` and ``torch.amin``: an empty list of dimensions means all of them."""

    def form(x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> torch.Tensor:
        import torch

        if x.ndim == 0:
            return x.clone()
        return NotImplemented if dim else getattr(torch, name)(x, list(range(x.ndim)), keepdim)

    return form


def truth(name: str) -> Callable:
    """``torch.any`` and ``torch.all``: the result of uint8 is uint8."""

    def form(x: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        import torch

        return getattr(torch, name)(x != 0, *args, **options).to(x.dtype) if x.dtype == torch.uint8 else NotImplemented

    return form


def nansum(
    x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``torch.nansum``: a plain sum for integers, which have no NaN."""
    import torch

    return NotImplemented if x.is_floating_point() else torch.sum(x, dim, keepdim, dtype=dtype)


def running_extremum(name: str) -> Callable:
    """``torch.cummax`` and ``torch.cummin``, with the place of the last of equal numbers.

    A parallel scan in steps that double: after each step, an element covers twice as many places before it.
    """

    def form(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        if x.ndim == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
        if not isinstance(x.shape[dim], int):
            return NotImplemented
        values = x.to(_comparable(x.dtype)).movedim(dim, -1)
        places, step = torch.arange(x.shape[dim], device=x.device).expand(values.shape), 1
        while step < x.shape[dim]:
            before, later = values[..., :-step], values[..., step:]
            stays = later >= before if name == "cummax" else later <= before
            if values.is_floating_point():
                stays = stays | later.isnan()  # a NaN wins over any number
            values = torch.cat([values[..., :step], torch.where(stays, later, before)], -1)
            places = torch.cat([places[..., :step], torch.where(stays, places[..., step:], places[..., :-step])], -1)
            step *= 2
        return values.movedim(-1, dim).to(x.dtype), places.movedim(-1, dim)

    return form


def _comparable(dtype: torch.dtype) -> torch.dtype:
    import torch

    return {torch.bool: torch.uint8, torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(dtype, dtype)


def in_stated_type(name: str) -> Callable:
    """A sum or product with a ``dtype``: numbers are cast to it before the reduction, booleans after it."""

    def form(x: torch.Tensor, *args: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        import torch

        if dtype is None:  # another call of the program
            return NotImplemented
        function, x = getattr(torch, name), x.to(dtype)
        if dtype == torch.bool:
            return function(x.to(torch.int64), *args) != 0
        if dtype in (torch.float16, torch.bfloat16):
            return function(x.to(torch.float32), *args).to(dtype)
        return NotImplemented

    return form


FORMS = {
    "aten.nansum.default": nansum,
    "aten.amax.default": extremum("amax"),
    "aten.amin.default": extremum("amin"),
    "aten.cummax.default": running_extremum("cummax"),
    "aten.cummin.default": running_extremum("cummin"),
    "aten.cumprod.default": cumprod,
    **{f"aten.{name}.{which}": truth(name) for name in ("all", "any") for which in ("default", "dim", "dims")},
}

STATED = {
    f"aten.{name}.{which}": in_stated_type(name)
    for name, overloads in {
        "sum": ("default", "dim_IntList"),
        "prod": ("default", "dim_int"),
        "cumsum": ("default",),
    }.items()
    for which in overloads
}
"""Like ``FORMS``, for calls with a ``dtype`` only."""

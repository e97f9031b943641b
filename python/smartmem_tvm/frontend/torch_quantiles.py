# SPDX-License-Identifier: Apache-2.0
"""Quantiles: sort the numbers, then take one of them or interpolate between two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smartmem_tvm.frontend.torch_sorts import argsort

if TYPE_CHECKING:
    import torch


_ROUNDED = {"lower": "floor", "higher": "ceil", "nearest": "round"}


def quantile(
    x: torch.Tensor,
    q: torch.Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> torch.Tensor:
    """``torch.quantile``: a NaN makes the result of its row NaN."""
    import torch

    found = _quantile(x, q, dim, keepdim, interpolation, None)
    is_none = x.isnan().any() if dim is None else x.isnan().any(dim, keepdim)
    return torch.where(is_none, float("nan"), found)


def nanquantile(
    x: torch.Tensor,
    q: torch.Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> torch.Tensor:
    """``torch.nanquantile``: the quantile without NaNs."""
    numbers = ~x.isnan()
    return _quantile(x, q, dim, keepdim, interpolation, numbers.reshape(-1) if dim is None else numbers)


def _quantile(
    x: torch.Tensor,
    q: torch.Tensor | float,
    dim: int | None,
    keepdim: bool,
    interpolation: str,
    numbers: torch.Tensor | None,
) -> torch.Tensor:
    """Return the quantiles of each row; `numbers` marks the elements that count, None means all."""
    import torch

    rank, is_scalar = x.ndim, not isinstance(q, torch.Tensor) or q.ndim == 0
    rows = x.reshape(-1) if dim is None or not rank else x.movedim(dim, -1)
    rows = rows.gather(-1, argsort(rows, -1))
    if not isinstance(q, torch.Tensor):
        q = torch.full((), q, dtype=x.dtype, device=x.device)
    last = rows.shape[-1] - 1
    if numbers is not None:
        numbers = numbers if dim is None or not rank else numbers.movedim(dim, -1)
        last = (numbers.sum(-1, keepdim=True) - 1).clamp(min=0).to(x.dtype)
    place = (q.reshape(-1) * last).expand(*rows.shape[:-1], q.numel())
    if interpolation in _ROUNDED:
        found = _at(rows, getattr(torch, _ROUNDED[interpolation])(place))
    else:
        below, above = (_at(rows, each) for each in (place.floor(), place.ceil()))
        weight = torch.full_like(place, 0.5) if interpolation == "midpoint" else place - place.floor()
        # As in ``torch.lerp``.
        found = torch.where(weight < 0.5, below + weight * (above - below), above - (above - below) * (1 - weight))
    found = found.squeeze(-1) if is_scalar else found.movedim(-1, 0)
    if not keepdim:
        return found
    if dim is None:
        return found.reshape(*found.shape, *[1] * rank)
    return found.unsqueeze(dim % max(rank, 1) + (not is_scalar)) if rank else found


def _at(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return elements of each row by sums: a lookup at a computed place of computed values is a large kernel."""
    import torch

    is_it = places.unsqueeze(-1) == torch.arange(rows.shape[-1], device=rows.device)
    return torch.where(is_it, rows.unsqueeze(-2), 0.0).sum(-1)


FORMS = {
    f"aten.{name}.{which}": form
    for name, form in (("quantile", quantile), ("nanquantile", nanquantile))
    for which in ("default", "scalar")
}

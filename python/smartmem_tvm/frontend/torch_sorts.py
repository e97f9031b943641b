# SPDX-License-Identifier: Apache-2.0
"""Sort like torch: equal numbers keep their order, and NaN is the greatest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smartmem_tvm.frontend.torch_bits import view_as

if TYPE_CHECKING:
    import torch


def sort(values: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.sort``, always stable; integers use the operator itself."""
    import torch

    is_known = values.dtype != torch.bool and not values.is_floating_point()
    return NotImplemented if is_known else _sorted(values, dim, descending)


def _sorted(values: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    plain = torch.ops.aten.sort.default
    if values.dtype == torch.bool:
        found, places = plain(values.to(torch.uint8), dim, descending)
        return found.to(torch.bool), places
    if values.ndim == 0:
        return values.clone(), torch.zeros((), dtype=torch.int64)
    if not values.is_floating_point():
        return plain(values, dim, descending)
    places = plain(_in_order(values), dim, descending)[1]
    return values.gather(dim, places), places


def _in_order(values: torch.Tensor) -> torch.Tensor:
    """Return integers in the order of the floats: TVM's comparison of floats does not order NaN."""
    import torch

    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    dtype, bits, infinity = (
        (torch.int32, 31, 0x7F800000) if wide.dtype == torch.float32 else (torch.int64, 63, 0x7FF0000000000000)
    )
    number = view_as(wide, dtype)
    size = number & (2**bits - 1)
    signed = torch.where(number < 0, -size, size)  # both zeros are one number
    return torch.where(size > infinity, 2**bits - 1, signed)


def stable_sort(
    values: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.sort(stable=...)``."""
    return _sorted(values, dim, descending)


def argsort(values: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """``torch.argsort``."""
    return _sorted(values, dim, descending)[1]


def stable_argsort(values: torch.Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """``torch.argsort(stable=...)``."""
    return _sorted(values, dim, descending)[1]


FORMS = {
    "aten.argsort.default": argsort,
    "aten.argsort.stable": stable_argsort,
    "aten.sort.default": sort,
    "aten.sort.stable": stable_sort,
}

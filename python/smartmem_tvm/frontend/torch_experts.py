# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products, one matrix for each group of rows: mixtures of experts as transformers writes them.

The number of rows of a group is known only at run time, so a group cannot be a product of static size. Each row looks
up its matrix instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smartmem_tvm.frontend.torch_search import searchsorted

if TYPE_CHECKING:
    import torch


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``torch._grouped_mm``.

    Parameters
    ----------
    a, b : torch.Tensor
        One matrix, or one for each group. The operand that is a single matrix has a dimension split into groups: the
        rows of `a`, the columns of `b`, or the reduction if both are single matrices.
    offs : torch.Tensor, optional
        The end of each group; results after the last one are 0. None: both have a matrix for each group.
    """
    import torch

    if offs is None:
        found = torch.matmul(a, b)
    elif a.ndim == 2 and b.ndim == 3:
        found = _of_rows(a, b, offs)
    elif a.ndim == 3 and b.ndim == 2:
        found = _of_rows(b.transpose(0, 1), a.transpose(1, 2), offs).transpose(0, 1)
    else:
        is_of = _groups(a.shape[1], offs) == torch.arange(offs.shape[0], device=offs.device).unsqueeze(-1)
        found = torch.matmul(torch.where(is_of.unsqueeze(1), a, 0.0), b)
    found = found if bias is None else found + bias
    return found if out_dtype is None else found.to(out_dtype)


def _of_rows(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply each row by the matrix of its group; 0 for rows after the last group."""
    import torch

    group, count = _groups(rows.shape[0], ends), matrices.shape[0]
    found = torch.matmul(rows.unsqueeze(1), matrices[group.clamp(max=count - 1)]).squeeze(1)
    return torch.where((group < count).unsqueeze(-1), found, 0.0)


def _groups(count: int, ends: torch.Tensor) -> torch.Tensor:
    """Return the group of each of `count` rows: the number of groups that end before it."""
    import torch

    return searchsorted(ends, torch.arange(count, dtype=ends.dtype, device=ends.device), right=True)


FORMS = {
    "aten._grouped_mm.default": grouped_mm,
    "transformers.grouped_mm_fallback.default": grouped_mm,
}

# SPDX-License-Identifier: Apache-2.0
"""Find the places of numbers among sorted ones, and count numbers in the parts of a range.

torch decomposes a search into a binary search, whose steps each read the previous result twice: the fused expression
would double with each step. The number of boundaries before a number is the same place, and it is one sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def searchsorted(
    boundaries: torch.Tensor,
    values: torch.Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """``torch.searchsorted``: for each value the number of boundaries before it, in int64 or int32.

    A NaN is placed after all boundaries, as in torch.
    """
    import torch

    dtype = torch.int32 if out_int32 else torch.int64
    if not isinstance(values, torch.Tensor):
        values = torch.full((), values, dtype=_scalar_type(values), device=boundaries.device)
    if sorter is not None:
        boundaries = boundaries.gather(-1, sorter)
    if boundaries.shape[-1] == 0:
        return torch.zeros(values.shape, dtype=dtype, device=values.device)
    common = torch.result_type(boundaries, values)
    if boundaries.ndim > 1:
        boundaries = boundaries.unsqueeze(-2)
    boundaries, values = boundaries.to(common), values.to(common).unsqueeze(-1)
    is_behind = boundaries > values if right or side == "right" else boundaries >= values
    return (~is_behind).sum(-1, dtype=torch.int64).to(dtype)  # a NaN is behind no boundary, so its place is the last


def bucketize(values: Any, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False) -> torch.Tensor:
    """``torch.bucketize``: `searchsorted` among boundaries of one dimension."""
    return searchsorted(boundaries, values, out_int32=out_int32, right=right)


def histc(values: torch.Tensor, bins: int = 100, least: float = 0, largest: float = 0) -> torch.Tensor:
    """``torch.histc``: the number of values in each of `bins` equal parts of a range, in the type of the values."""
    import torch

    values = values.reshape(-1)
    if least == largest and values.numel():  # the range of the values themselves
        least, largest = values.amin(0), values.amax(0)
    else:
        least, largest = (torch.full((), float(each), dtype=values.dtype) for each in (least, largest))
    is_one = least == largest
    least, largest = torch.where(is_one, least - 1, least), torch.where(is_one, largest + 1, largest)
    # In the order of torch's kernel: other rounding would move a value at an edge into the neighbouring part.
    place = ((values - least) * bins / (largest - least)).clamp(max=bins - 1)
    is_inside = (values >= least) & (values <= largest)
    place = torch.where(is_inside, place, -1).to(torch.int64)
    return (place == torch.arange(bins).unsqueeze(-1)).sum(-1, dtype=torch.int64).to(values.dtype)


def _scalar_type(value: float) -> torch.dtype:
    import torch

    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, int) else torch.get_default_dtype()


FORMS = {
    "aten.bucketize.Scalar": bucketize,
    "aten.bucketize.Tensor": bucketize,
    "aten.histc.default": histc,
    "aten.searchsorted.Scalar": searchsorted,
    "aten.searchsorted.Tensor": searchsorted,
}

# SPDX-License-Identifier: Apache-2.0
"""The angle of a point: ``torch.atan2``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ATAN2 = "smartmem::Atan2"  # ONNX has none, and torch's exporter returns -pi for the angle of (-1, 0)


def atan2(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``torch.atan2``: computed in float32 or float64 and rounded once; integers become torch's default type."""
    import torch

    dtype = torch.result_type(y, x)
    if not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    wide = torch.promote_types(dtype, torch.float32)
    y, x = torch.broadcast_tensors(y.to(dtype).to(wide), x.to(dtype).to(wide))
    return torch.onnx.ops.symbolic(ATAN2, (y, x), dtype=wide, shape=y.shape, version=1).to(dtype)


FORMS = {f"aten.{name}.default": atan2 for name in ("arctan2", "atan2")}

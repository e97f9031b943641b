# SPDX-License-Identifier: Apache-2.0
"""Run a program in torch, operator by operator, as the reference for results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from smartmem_tvm.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def run_torch(program: ExportedProgram, arrays: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
    """Return the tensors that torch computes, on the CPU.

    Parameters
    ----------
    arrays
        One array for each tensor among the program's inputs, in their order.

    Raises
    ------
    UserError
        If torch refuses the input.
    """
    import torch
    from torch.utils import _pytree as tree

    given = iter(map(_as_tensor, arrays))
    try:
        # Inputs other than tensors are part of the program: they keep their values of the export.
        args, options = tree.tree_map_only(torch.Tensor, lambda _: next(given), program.example_inputs)
        with torch.no_grad():
            found = program.module()(*args, **options)
    except Exception as error:  # torch raises many types
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise UserError(f"torch cannot run {name} ({reason}), so there is nothing to compare with.") from error
    return [_as_array(each) for each in tree.tree_leaves(found) if isinstance(each, torch.Tensor)]


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    import torch

    if str(array.dtype) == "bfloat16":  # torch knows numpy's own types only
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    import ml_dtypes
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()

# SPDX-License-Identifier: Apache-2.0
"""Convert TVM tensors and numpy arrays without copies, also of bfloat16, which numpy's DLPack does not support."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import tvm

_BFLOAT16, _BITS = "bfloat16", "uint16"


def array_of(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """Return a tensor on a CPU as an array in the same memory."""
    if str(tensor.dtype) != _BFLOAT16:
        return np.from_dlpack(tensor)
    return np.from_dlpack(tensor._create_view(tensor.shape, _BITS)).view(ml_dtypes.bfloat16)


def tensor_of(array: np.ndarray) -> tvm.runtime.Tensor:
    """Return an array as a tensor in the same memory."""
    if array.dtype != ml_dtypes.bfloat16:
        return tvm.runtime.from_dlpack(array)
    return tvm.runtime.from_dlpack(array.view(_BITS))._create_view(array.shape, _BFLOAT16)

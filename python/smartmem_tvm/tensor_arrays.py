# SPDX-License-Identifier: Apache-2.0
"""Tensors of TVM and arrays of numpy in the same memory, also of bfloat16, which numpy's interchange does not know."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import tvm

_BFLOAT16, _BITS = "bfloat16", "uint16"


def array_of(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """The tensor's numbers, on a CPU; not a copy."""
    if str(tensor.dtype) != _BFLOAT16:
        return np.from_dlpack(tensor)
    return np.from_dlpack(tensor._create_view(tensor.shape, _BITS)).view(ml_dtypes.bfloat16)


def tensor_of(array: np.ndarray) -> tvm.runtime.Tensor:
    """The array's numbers; not a copy."""
    if array.dtype != ml_dtypes.bfloat16:
        return tvm.runtime.from_dlpack(array)
    return tvm.runtime.from_dlpack(array.view(_BITS))._create_view(array.shape, _BFLOAT16)

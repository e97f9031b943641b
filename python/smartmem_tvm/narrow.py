# SPDX-License-Identifier: Apache-2.0
"""Types of fewer than sixteen bits that ONNX has and kernels lack: a tensor of them is kept in bytes.

A float of eight bits or fewer is kept as its bits in uint8, an integer of four or two bits as its value in int8 or
uint8. Outside of a compiled model their arrays are those of `ml_dtypes`, which have one byte for each number too.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import tvm

# Attributes of ``main`` of a module that takes or gives such tensors.
INPUT_TYPES, OUTPUT_TYPES = "input_types", "output_types"
_INTEGERS = ("int4", "uint4", "int2", "uint2")


def is_narrow(dtype: str) -> bool:
    """Whether a type, by the name that numpy and ml_dtypes give it, is one of these."""
    return dtype in _INTEGERS or dtype.startswith(("float8_", "float6_", "float4_"))


def is_integer(dtype: str) -> bool:
    """Whether a type, narrow or not, is one of integers."""
    return dtype.startswith(("int", "uint"))


def storage_of(dtype: str) -> str:
    """The type in which a tensor is kept; any type that is not narrow is kept as it is."""
    if not is_narrow(dtype):
        return dtype
    return "int8" if dtype.startswith("int") else "uint8"


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer type, narrow or not."""
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def to_bytes(array: np.ndarray) -> np.ndarray:
    """The array as it is kept: itself unless its type is narrow."""
    dtype = str(array.dtype)
    if not is_narrow(dtype):
        return array
    return array.astype(storage_of(dtype)) if is_integer(dtype) else array.view("uint8")


def from_bytes(array: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of `to_bytes`."""
    if not is_narrow(dtype):
        return array
    return array.astype(dtype) if is_integer(dtype) else array.view(dtype)


def stated_types(mod: tvm.IRModule, key: str, function: str = "main") -> list[str] | None:
    """What `INPUT_TYPES` or `OUTPUT_TYPES` of a function says: the name of each narrow type, else an empty one."""
    attributes = mod[function].attrs or {}
    return [str(name) for name in attributes[key]] if key in attributes else None


def as_stated(arrays: Sequence[np.ndarray], mod: tvm.IRModule, function: str = "main") -> list[np.ndarray]:
    """What a function of a compiled module gives, in the types that the model states."""
    dtypes = stated_types(mod, OUTPUT_TYPES, function)
    return list(arrays) if dtypes is None else [from_bytes(*pair) for pair in zip(arrays, dtypes, strict=True)]

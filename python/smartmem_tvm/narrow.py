# SPDX-License-Identifier: Apache-2.0
"""Narrow types, of at most eight bits, that ONNX has and kernels lack: their tensors are stored in bytes.

A float of eight bits or fewer is stored as its bits in uint8, an integer of four or two bits as its value in int8 or
uint8. Outside of a compiled model their arrays have the types of `ml_dtypes`, which also use one byte for each number.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import tvm

# Attributes of ``main``: the stated types of inputs and outputs, for modules with narrow types.
INPUT_TYPES, OUTPUT_TYPES = "input_types", "output_types"
_INTEGERS = ("int4", "uint4", "int2", "uint2")


def is_narrow(dtype: str) -> bool:
    """Whether a type, by its name in numpy and ml_dtypes, is narrow."""
    return dtype in _INTEGERS or dtype.startswith(("float8_", "float6_", "float4_"))


def is_integer(dtype: str) -> bool:
    """Whether a type, narrow or not, is an integer type."""
    return dtype.startswith(("int", "uint"))


def storage_of(dtype: str) -> str:
    """Return the type in which a tensor is stored: bytes for a narrow type, else the type itself."""
    if not is_narrow(dtype):
        return dtype
    return "int8" if dtype.startswith("int") else "uint8"


def limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type, narrow or not."""
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def to_bytes(array: np.ndarray) -> np.ndarray:
    """Return the array as it is stored: unchanged unless its type is narrow."""
    dtype = str(array.dtype)
    if not is_narrow(dtype):
        return array
    return array.astype(storage_of(dtype)) if is_integer(dtype) else array.view("uint8")


def from_bytes(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the array of a stored one: the inverse of `to_bytes`."""
    if not is_narrow(dtype):
        return array
    return array.astype(dtype) if is_integer(dtype) else array.view(dtype)


def stated_types(mod: tvm.IRModule, key: str, function: str = "main") -> list[str] | None:
    """Return `INPUT_TYPES` or `OUTPUT_TYPES` of a function: the name of each narrow type, else an empty name."""
    attributes = mod[function].attrs or {}
    return [str(name) for name in attributes[key]] if key in attributes else None


def as_stated(arrays: Sequence[np.ndarray], dtypes: Sequence[str] | None) -> list[np.ndarray]:
    """Return outputs in the types that the model states, as `stated_types` gives them."""
    return list(arrays) if dtypes is None else [from_bytes(*pair) for pair in zip(arrays, dtypes, strict=True)]

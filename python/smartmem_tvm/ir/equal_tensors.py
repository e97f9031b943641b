# SPDX-License-Identifier: Apache-2.0
"""Tensors with the same numbers: passes pack a weight anew for each reader and for each size of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import tvm

from ..tensor_arrays import array_of
from .sizes import STORABLE, data_bytes


def first_of_equals(tensors: Iterable[tvm.runtime.Tensor]) -> dict[tvm.runtime.Tensor, tvm.runtime.Tensor]:
    """Return, for each tensor that shares its shape and type with another, the first that also has its bytes.

    Tensors without numbers, and those of types that numpy lacks, are left out.
    """
    alike: dict[tuple, list[tvm.runtime.Tensor]] = {}
    for tensor in dict.fromkeys(tensors):
        if str(tensor.dtype) in STORABLE and data_bytes(tensor):
            alike.setdefault((str(tensor.dtype), tuple(map(int, tensor.shape))), []).append(tensor)
    found = {}
    for group in alike.values():
        first: dict[bytes, tvm.runtime.Tensor] = {}
        for tensor in group if len(group) > 1 else ():
            digest = hashlib.sha256(np.ascontiguousarray(array_of(tensor)).reshape(-1).view("uint8")).digest()
            found[tensor] = first.setdefault(digest, tensor)
    return found

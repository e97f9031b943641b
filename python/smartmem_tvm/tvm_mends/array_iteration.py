# SPDX-License-Identifier: Apache-2.0
"""Halve the time of iterating over a TVM array; in effect once TVM is imported through `_tvm`."""

from __future__ import annotations

from collections.abc import Iterator

import tvm_ffi
from tvm_ffi import _ffi_api as _array_api


def _elements(array: tvm_ffi.Array) -> Iterator:
    """Yield the elements of an array.

    Work-around: TVM's iteration checks the length and the type of the index for each element, which takes twice the
    time. The checks are not needed, as the elements of an array never change.
    """
    return iter([_array_api.ArrayGetItem(array, number) for number in range(_array_api.ArraySize(array))])


ELEMENTS, tvm_ffi.Array.__iter__ = tvm_ffi.Array.__iter__, _elements

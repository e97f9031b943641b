# SPDX-License-Identifier: Apache-2.0
"""What numbers take in memory, and who says what lies where."""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax

ARENA = "arena"
"""What the variable of each storage is called in which tensors take turns, each at an offset."""
HELD = "smartmem.arenas"
"""Function attribute: the tensors in arenas as JSON, each with ``arena`` (its number, in the order of allocation),
``offset``, ``shape``, ``dtype``, ``bytes``, and ``first`` and ``last``, numbers of launches."""

JOIN = "smartmem.join"
"""The packed call that puts the slices of a result together, as long as they are tensors of their own."""
ROWS = "smartmem.rows"
"""The packed call that looks rows up in a table, which a stream reads from a file."""
LARGE = 2**16
"""Bytes; smaller constants stay in the library, larger ones are kept apart from the code."""
STORABLE = frozenset(str(np.dtype(code)) for code in "?bhilBHILefd") | {"bfloat16"}
"""Types that are written to a file of weights: those that numpy has of its own, and bfloat16 by its bits."""
WEIGHT_ALIGNMENT = 64
"""Bytes that the place of a weight in a file is a multiple of: TVM's vector instructions count on it in memory."""
STREAMED_FROM = 2**12
"""Bytes; smaller constants stay in the library with a memory budget, so that slices do not."""
STREAM = "smartmem.stream"
"""Function attribute: what a stream has to know of ``main``, as JSON: ``budget``, ``steps`` (``kernel``, ``flops``),
``tensors`` (``bytes``, and the numbers of the ``first`` and the ``last`` step that use it) and ``uses`` of weights
(``weight``, its number in `STREAMED`, ``bytes`` and ``step``)."""
STREAMED = "smartmem.streamed"
"""Module attribute: the weights of ``main`` that a stream reads."""


def data_bytes(tensor: relax.Type | tvm.runtime.Tensor) -> int:
    """Bytes of a tensor's numbers, one behind the other; 0 of what is no tensor, or of a shape that is not known."""
    shape = getattr(tensor, "shape", None)
    dims = [getattr(dim, "value", dim) for dim in shape] if shape is not None else [None]
    return prod(dims) * number_bytes(str(tensor.dtype)) if all(isinstance(dim, int) for dim in dims) else 0


def number_bytes(dtype: str) -> int:
    """Bytes of one number in memory."""
    return 1 if dtype == "bool" else max(1, tvm.DataType(dtype).bits // 8)

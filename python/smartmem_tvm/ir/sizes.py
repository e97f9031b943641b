# SPDX-License-Identifier: Apache-2.0
"""Sizes of tensors in bytes, limits in bytes, and the names of the attributes that describe memory."""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax, tirx

ARENA = "arena"
"""Name of the variable of a storage that several tensors share, one after the other, each at an offset."""
HELD = "smartmem.arenas"
"""Function attribute: the tensors in arenas as JSON, each with ``arena`` (its number, in the order of allocation),
``offset``, ``shape``, ``dtype``, ``bytes``, and ``first`` and ``last``, numbers of launches."""

JOIN = "smartmem.join"
"""The packed call that joins the slices of a result while they are separate tensors."""
ROWS = "smartmem.rows"
"""The packed call that looks up rows of a table that a stream reads from a file."""
LARGE = 2**16
"""Bytes; smaller constants stay in the library, larger ones are stored outside of the code."""
STORABLE = frozenset(str(np.dtype(code)) for code in "?bhilBHILefd") | {"bfloat16"}
"""Types that a file of weights can hold: numpy's own, and bfloat16 by its bits."""
WEIGHT_ALIGNMENT = 64
"""Bytes; alignment of weights in a file, as TVM's vector instructions need this alignment in memory."""
STREAMED_FROM = 2**12
"""Bytes; under a memory budget, smaller constants stay in the library, and slices of weights do not."""
STREAM = "smartmem.stream"
"""Function attribute: the facts about the function that a stream needs, as JSON: ``budget``, ``steps`` (``kernel``,
``flops``), ``tensors`` (``bytes``, and the numbers of the ``first`` and the ``last`` step that use it) and ``uses`` of
weights (``weight``, its number in `STREAMED`, ``bytes`` and ``step``)."""
STREAMED = "smartmem.streamed"
"""Module attribute: the weights that a stream reads."""


def data_bytes(tensor: relax.Type | tirx.Buffer | tvm.runtime.Tensor) -> int:
    """Return the bytes of the numbers of a tensor, of a buffer, or of all tensors of a tuple type, without padding.

    0 for anything else, and for an unknown shape.
    """
    if isinstance(tensor, relax.TupleType):
        return sum(map(data_bytes, tensor.fields))
    shape = getattr(tensor, "shape", None)
    dims = [getattr(dim, "value", dim) for dim in shape] if shape is not None else [None]
    return prod(dims) * number_bytes(str(tensor.dtype)) if all(isinstance(dim, int) for dim in dims) else 0


def number_bytes(dtype: str) -> int:
    """Bytes of one number in memory."""
    return 1 if dtype == "bool" else max(1, tvm.DataType(dtype).bits // 8)

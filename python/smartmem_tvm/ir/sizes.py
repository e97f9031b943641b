# SPDX-License-Identifier: Apache-2.0
"""What numbers take in memory, and who says what lies where."""

from __future__ import annotations

import tvm

ARENA = "arena"
"""What the variable of each storage is called in which tensors take turns, each at an offset."""
HELD = "smartmem.arenas"
"""Function attribute: the tensors in arenas as JSON, each with ``arena`` (its number, in the order of allocation),
``offset``, ``shape``, ``dtype``, ``bytes``, and ``first`` and ``last``, numbers of launches."""


def number_bytes(dtype: str) -> int:
    """Bytes of one number in memory."""
    return 1 if dtype == "bool" else max(1, tvm.DataType(dtype).bits // 8)

# SPDX-License-Identifier: Apache-2.0
"""What numbers take in memory."""

from __future__ import annotations

import tvm


def number_bytes(dtype: str) -> int:
    """Bytes of one number in memory."""
    return 1 if dtype == "bool" else max(1, tvm.DataType(dtype).bits // 8)

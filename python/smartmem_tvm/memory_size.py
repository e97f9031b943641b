# SPDX-License-Identifier: Apache-2.0
"""Parse sizes of memory with units."""

from __future__ import annotations

import re

from .errors import UserError

_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**n for n, p in enumerate("kMGT", 1)}}
_UNITS |= {f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)} | {"KB": 1000}


def memory_bytes(size: int | str) -> int:
    """Return the bytes of a size such as ``"100MB"`` (10**8), ``"64MiB"`` (2**26) or a plain number of bytes.

    Raises
    ------
    UserError
        If it is no size, or less than 1 byte.
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", str(size))
    unit = _UNITS.get(found[2]) if found else None
    count = int(float(found[1]) * unit) if unit else 0
    if count < 1:
        raise UserError(f"'{size}' is no memory size: give a number and a unit, as in 100MB, 64MiB or 1.5GB.")
    return count

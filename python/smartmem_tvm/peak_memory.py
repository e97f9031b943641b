# SPDX-License-Identifier: Apache-2.0
"""Peak memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_mb() -> float:
    """Return the largest resident set since the process began, or since `restart_peak`, in MB (10^6 bytes)."""
    if _STATUS.exists():
        line = next((each for each in _STATUS.read_text().splitlines() if each.startswith("VmHWM")), None)
        if line is not None:
            return int(line.split()[1]) * 1024 / 1e6
    # The fallback without /proc: Linux keeps this value across exec, so it may be the parent's peak.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def restart_peak() -> bool:
    """Return freed memory to the system and measure the peak anew; return False if the system cannot do that."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # a C library without malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5")  # "5" resets VmHWM, see proc(5)
    except OSError:
        return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""One process at a time measures on this machine's GPU: kernels of two of them would slow each other down."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# While tuning, `tempfile` leads to a folder that no other process uses: this is where it led before.
LOCK = Path(tempfile.gettempdir()) / f"smartmem-gpu-{os.getuid()}.lock"


@contextmanager
def gpu_turn(path: Path = LOCK) -> Iterator[None]:
    """Wait until no other process of this user measures, and keep them waiting; a turn ends with its process."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)

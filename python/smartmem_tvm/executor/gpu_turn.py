# SPDX-License-Identifier: Apache-2.0
"""Let one process at a time measure on this machine's GPU: kernels of two processes would slow each other down."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Computed at import: a tuning process later redirects `tempfile` to a private folder.
LOCK = Path(tempfile.gettempdir()) / f"smartmem-gpu-{os.getuid()}.lock"


@contextmanager
def gpu_turn(path: Path = LOCK) -> Iterator[None]:
    """Wait until no other process of this user measures, then hold the lock; a process that ends releases it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)

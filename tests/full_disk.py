# SPDX-License-Identifier: Apache-2.0
"""Simulate a full disk for this process."""

import resource
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_room_beyond(path: Path, extra: int):
    """Limit the size of files to that of `path` plus `extra` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.stat().st_size if path.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, as far as this process is concerned."""

import resource
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_room_beyond(path: Path, extra: int):
    """Files do not grow beyond what `path` has now and some bytes more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.stat().st_size if path.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

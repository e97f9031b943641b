# SPDX-License-Identifier: Apache-2.0
"""One folder for all temporary files of a process and of those that it starts, which does not stay behind.

A process that is killed removes nothing: the next one does. A folder is somebody's as long as he holds its lock, which
the system takes from whoever ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(purpose: str = "tune") -> Iterator[Path]:
    """Meanwhile `tempfile`, and $TMPDIR for other processes, lead to a folder of this process's own.

    Parameters
    ----------
    purpose : str
        In the folder's name, by which the next one with the same purpose knows it.
    """
    top, variable, prefix = Path(tempfile.gettempdir()), os.environ.get("TMPDIR"), f"smartmem-{purpose}-"
    for each in top.glob(f"{prefix}*"):
        _remove_if_abandoned(each)
    folder, lock = _locked_folder(top, prefix)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if variable is not None:
            os.environ["TMPDIR"] = variable
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(top: Path, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=top))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # another process may have taken it for abandoned before it was locked
                return folder, lock
            os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is in use, or somebody else's
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)

# SPDX-License-Identifier: Apache-2.0
"""One folder for all temporary files of a process and of the processes that it starts, removed at the end.

A killed process removes nothing; the next process does. A folder is in use as long as a process holds its lock, which
the system releases at the end of the process.
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
    """Point `tempfile`, and $TMPDIR for child processes, to a private folder while the context is open.

    Parameters
    ----------
    purpose : str
        Part of the folder's name, by which later processes with the same purpose find abandoned folders.
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
            if folder.exists():  # another process may have removed it as abandoned before it was locked
                return folder, lock
            os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is in use, or belongs to another user
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)

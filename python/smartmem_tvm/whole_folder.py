# SPDX-License-Identifier: Apache-2.0
"""Write folders atomically."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from .errors import UserError

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside another one; it replaces the other one when it is complete.

    Raises
    ------
    UserError
        If the folder cannot be written.
    """
    with writable(folder):
        partial = make_sibling(folder.resolve())
        try:
            yield partial
            replace_folder(folder.resolve(), partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn errors of the system into a `UserError`."""
    try:
        yield
    except OSError as err:
        raise UserError(
            f"Output folder {folder} cannot be written ({err.strerror or err}); give a folder that can."
        ) from err


def make_sibling(folder: Path) -> Path:
    """Create a hidden folder in the nearest existing parent, so on the same disk: renaming is then one step."""
    sibling = next(parent for parent in folder.parents if parent.exists()) / f".{folder.name}.{uuid.uuid4().hex}"
    sibling.mkdir()
    return sibling


def _exchanged(folder: Path, new: Path) -> bool:
    """Exchange the names of two folders in one step, so that a killed process leaves one of them in place.

    Linux can do this on most file systems; return whether it was done.
    """
    exchange = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    names = (os.fsencode(path) for path in (folder, new))
    return exchange is not None and exchange(*(part for name in names for part in (_HERE, name)), _EXCHANGE) == 0


def replace_folder(folder: Path, new: Path) -> None:
    """Replace a folder by another one; at any time, one of both has the name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        new.rename(folder)
        return
    if _exchanged(folder, new):
        return
    old = make_sibling(folder)
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)

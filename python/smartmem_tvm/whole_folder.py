# SPDX-License-Identifier: Apache-2.0
"""Folders that are whole or not there, and that take the place of nothing else."""

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
    """A new folder beside another; it gets the other's name, and its place, when all is written.

    Raises
    ------
    UserError
        If it cannot be written.
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
    """Raise a `UserError` for what the system does not allow."""
    try:
        yield
    except OSError as err:
        raise UserError(
            f"Output folder {folder} cannot be written ({err.strerror or err}); give a folder that can."
        ) from err


def make_sibling(folder: Path) -> Path:
    """A new hidden folder in the nearest folder above that exists: on the same disk, so that renaming is one step."""
    sibling = next(parent for parent in folder.parents if parent.exists()) / f".{folder.name}.{uuid.uuid4().hex}"
    sibling.mkdir()
    return sibling


def _exchanged(folder: Path, new: Path) -> bool:
    """Give two folders each other's names in one step, so that a process that is killed leaves one of both in place.

    Linux can, on most file systems.
    """
    exchange = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    names = (os.fsencode(path) for path in (folder, new))
    return exchange is not None and exchange(*(part for name in names for part in (_HERE, name)), _EXCHANGE) == 0


def replace_folder(folder: Path, new: Path) -> None:
    """Give a folder the name of another, which is there no more afterwards; whatever happens, one of both is."""
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

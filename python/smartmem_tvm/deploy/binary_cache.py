# SPDX-License-Identifier: Apache-2.0
"""A cache of compiled kernels on disk, keyed by their sources.

Files appear whole, so that several processes may share one folder. A damaged file is deleted, and counts as missing.
When the folder is full, the least recently used files are deleted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from ..errors import UserError

_SUFFIX, _UNFINISHED = ".bin", ".unfinished"
_ABANDONED = 3600  # seconds after which an unfinished file counts as abandoned
_SUM = 32  # bytes of SHA-256 before the binary
_logger = logging.getLogger(__name__)


class BinaryCache:
    """A folder of binaries.

    Parameters
    ----------
    folder : Path or None
        The first `store` creates it. With None, nothing is kept.
    megabytes : int
        Largest size of the folder, in MiB.
    what : str
        Name of the binaries, for a warning.
    """

    def __init__(self, folder: Path | None, megabytes: int = 1024, what: str = "compiled kernels"):
        self.folder, self.limit, self.what = folder, megabytes << 20, what
        self._warned = False

    def load(self, *key: str) -> bytes | None:
        """Return the binary stored for `key`, or None."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        binary = content[_SUM:]
        if content[:_SUM] == hashlib.sha256(binary).digest():
            return binary
        _logger.warning("%s is damaged: what it held is made anew.", path)
        with suppress(OSError):
            path.unlink()
        return None

    def has(self, *key: str) -> bool:
        """Whether there is a file for `key`, whole or not; it counts as used."""
        if self.folder is None:
            return False
        try:
            os.utime(self._path(key))
        except OSError:
            return False
        return True

    def store(self, binary: bytes, *key: str) -> None:
        """Store a binary for `key`; if the folder cannot be written, warn once."""
        if self.folder is None:
            return
        partial = self.folder / f"{uuid.uuid4().hex}{_UNFINISHED}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(hashlib.sha256(binary).digest() + binary)
            partial.replace(self._path(key))
        except OSError as error:
            self._warn(error)
            with suppress(OSError):
                partial.unlink()

    def clear(self) -> int:
        """Delete all binaries, and return their number."""
        found = list(self.folder.glob(f"*{_SUFFIX}")) if self.folder is not None else []
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def prune(self) -> None:
        """If the limit is exceeded, delete the least recently used binaries down to three quarters of it."""
        if self.folder is None or not self.folder.is_dir():
            return
        entries = sorted((entry for path in self.folder.iterdir() if (entry := _entry(path))), reverse=True)
        room = self.limit if sum(size for _, size, _ in entries) <= self.limit else self.limit // 4 * 3
        for used, size, path in entries:
            abandoned = path.suffix == _UNFINISHED and used < time.time() - _ABANDONED
            if path.suffix == _SUFFIX:
                room -= size
            if abandoned or (path.suffix == _SUFFIX and room < 0):
                path.unlink(missing_ok=True)

    def _path(self, key: tuple[str, ...]) -> Path:
        # Lengths keep ("a", "bc") and ("ab", "c") apart.
        text = "".join(f"{len(part)}:{part}" for part in key)
        return self.folder / (hashlib.sha256(text.encode()).hexdigest() + _SUFFIX)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning("%s are not kept: writing into %s failed (%s).", self.what, self.folder, error.strerror)


def _entry(path: Path) -> tuple[float, int, Path] | None:
    """Return the time of last use, the bytes and the path of a file; None if another process has deleted it."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime, status.st_size, path


def cache_of(variable: str, name: str, what: str = "compiled kernels", megabytes: int = 1024) -> BinaryCache:
    """Return the cache that environment variables choose.

    Parameters
    ----------
    variable : str
        The variable that names the folder, or ``0`` for none; with the suffix ``_MB``, it gives the largest size.
    name : str
        Name of the default folder, below the user's cache folder.
    what : str
        See `BinaryCache`.
    megabytes : int
        The largest size in MiB, where no variable gives it.

    Raises
    ------
    UserError
        If the size is no whole number of at least 1.
    """
    chosen, size = os.environ.get(variable, ""), os.environ.get(f"{variable}_MB", str(megabytes))
    if not size.isdecimal() or int(size) < 1:
        raise UserError(f"{variable}_MB is '{size}' and must be a whole number, at least 1: correct or unset it.")
    if chosen == "0":
        return BinaryCache(None)
    base = os.environ.get("XDG_CACHE_HOME") or (f"{os.environ['HOME']}/.cache" if os.environ.get("HOME") else "")
    folder = chosen or (f"{base}/smartmem_tvm/{name}" if base else "")
    return BinaryCache(Path(folder).absolute() if folder else None, int(size), what)

# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines that several processes append to, and that stay readable if one of them is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import json_data
from ..errors import UserError
from ..whole_file import whole

try:
    import fcntl
except ImportError:  # missing on Windows; an append is still one write there
    fcntl = None

MOST_BYTES = 2**26  # bytes of a line; a kernel takes thousands


@dataclass(frozen=True)
class Damage:
    """A line that is no JSON object.

    Attributes
    ----------
    line : int
        Number of the line, from 1.
    torn : bool
        Whether it is the last line and incomplete, because its writer was stopped.
    """

    line: int
    torn: bool


def read(path: Path) -> tuple[list[dict], list[Damage]]:
    """Return the objects of a file, in their order, and the lines that hold none.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"Records {path} are no file; give the name of one.")
    found: list[dict] = []
    damaged: list[Damage] = []
    try:
        for number, line in enumerate(lines(path), start=1):
            value = _object(line)
            if value is not None:
                found.append(value)
            elif line.strip():
                damaged.append(Damage(number, torn=not line.endswith(b"\n")))
    except OSError as err:
        raise UserError(f"Records {path} cannot be read ({err.strerror or err}); give another file.") from err
    return found, damaged


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends; of a line longer than `MOST_BYTES`, only a mark and the end."""
    with path.open("rb") as file:
        while line := file.readline(MOST_BYTES):
            end = line
            while len(end) == MOST_BYTES and not end.endswith(b"\n"):
                end = file.readline(MOST_BYTES)
            yield line if end is line else b"... " + end[-1:]


def _object(line: bytes) -> dict | None:
    """Return the object on a line, None if there is none."""
    try:
        value = json_data.parse(line)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    return value if isinstance(value, dict) else None


def append(path: Path, objects: Sequence[dict], context: Sequence[dict] = (), known: int = -1) -> int:
    """Append all lines or none of them. Without lines, check only whether the file can be written.

    Parameters
    ----------
    context : sequence of dict
        Lines that these refer to. Those that are no longer in the file, because another file has replaced it, are
        written again first.
    known : int
        Size of the file when it held the context.

    Returns
    -------
    int
        The size of the file.

    Raises
    ------
    UserError
        If the lines cannot be written; the file then keeps its previous content.
    """
    with _locked(path) as handle:
        size = os.fstat(handle).st_size
        if not objects:
            if not size:  # perhaps created by this call; a process that waits for the lock creates it again
                path.unlink()
            return size
        lost = _missing(path.read_bytes(), context) if size != known else []
        data = b"".join(map(_line, (*lost, *objects)))
        os.lseek(handle, max(size - 1, 0), os.SEEK_SET)
        torn = size > 0 and os.read(handle, 1) != b"\n"
        left = memoryview(b"\n" * torn + data)
        try:
            while left:  # a full disk accepts a part, and reports the error at the next write
                left = left[os.write(handle, left) :]
            os.fsync(handle)
        except OSError as err:
            os.ftruncate(handle, size)
            raise _unwritable(path, err) from err
        return os.fstat(handle).st_size


def _line(value: dict) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _missing(content: bytes, objects: Iterable[dict]) -> list[dict]:
    there = set(content.splitlines(keepends=True))
    return [each for each in objects if _line(each) not in there]


def mend_end(path: Path) -> int:
    """Remove a torn line from the end of a file; return its bytes, 0 if the last line is whole."""
    if not path.exists():
        return 0
    with _locked(path) as handle:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if (
            whole == len(content) or _object(content[whole:]) is not None
        ):  # an editor may have removed the last line end
            return 0
        os.ftruncate(handle, whole)
        return len(content) - whole


def rewrite(path: Path, change: Callable[[list[dict]], list[dict]]) -> tuple[int, int]:
    """Replace the lines of a file atomically: a reader finds the old lines or the new ones.

    Parameters
    ----------
    change : callable
        The objects of the file -> the new objects.

    Returns
    -------
    tuple of int
        Number of lines before, with damaged ones, and after.

    Raises
    ------
    UserError
        If the file cannot be read or written.
    """
    with _locked(path):
        found, damaged = read(path)
        lines = change(found)
        with whole(path) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in lines)
            file.flush()
            os.fsync(file.fileno())
    return len(found) + len(damaged), len(lines)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a file, created if necessary, while no other process writes to it."""
    while True:
        if path.exists() and not path.is_file():
            raise UserError(f"Records {path} cannot be written, as they are no file; give another name.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as err:
            raise _unwritable(path, err) from err
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            # Another process may have replaced the file in the meantime.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                yield handle
                return
        finally:
            os.close(handle)


def _unwritable(path: Path, err: OSError) -> UserError:
    return UserError(
        f"Records {path} cannot be written ({err.strerror or err}): what is in the file stays; make room, or give "
        f"another file."
    )

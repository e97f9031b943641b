# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines that several processes add to, and that stay readable when one of them is killed."""

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
except ImportError:  # not on Windows, where appending is one write all the same
    fcntl = None

MOST_BYTES = 2**26  # of a line; a kernel takes thousands


@dataclass(frozen=True)
class Damage:
    """A line that is no JSON object.

    Attributes
    ----------
    line : int
        Its number, from 1.
    torn : bool
        It is the last one and has no end: whoever wrote it was stopped.
    """

    line: int
    torn: bool


def read(path: Path) -> tuple[list[dict], list[Damage]]:
    """The objects of a file, in their order, and the lines that are none.

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
    """The lines of a file with their ends, one after the other; of one longer than `MOST_BYTES` only its ends."""
    with path.open("rb") as file:
        while line := file.readline(MOST_BYTES):
            end = line
            while len(end) == MOST_BYTES and not end.endswith(b"\n"):
                end = file.readline(MOST_BYTES)
            yield line if end is line else b"... " + end[-1:]


def _object(line: bytes) -> dict | None:
    """The object on a line, None if there is none."""
    try:
        value = json_data.parse(line)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    return value if isinstance(value, dict) else None


def append(path: Path, objects: Sequence[dict], context: Sequence[dict] = (), known: int = -1) -> int:
    """Add lines at once; all of them are in the file afterwards, or none. Without lines, see whether that would work.

    Parameters
    ----------
    context : sequence of dict
        Lines that these refer to and that should be in the file; those that are not any more, as somebody has put
        another file in its place, are written again before them.
    known : int
        The file's size when they were there.

    Returns
    -------
    int
        The size of the file.

    Raises
    ------
    UserError
        If they cannot be written; what was in the file before stays.
    """
    with _locked(path) as handle:
        size = os.fstat(handle).st_size
        if not objects:
            if not size:  # made by this, perhaps; whoever waits for it makes it again
                path.unlink()
            return size
        lost = _missing(path.read_bytes(), context) if size != known else []
        data = b"".join(map(_line, (*lost, *objects)))
        os.lseek(handle, max(size - 1, 0), os.SEEK_SET)
        torn = size > 0 and os.read(handle, 1) != b"\n"
        left = memoryview(b"\n" * torn + data)
        try:
            while left:  # a disk takes what there is room for, and says so at the next write
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
    """Take a torn line from the end of a file; returns its bytes, 0 where the last line is whole."""
    if not path.exists():
        return 0
    with _locked(path) as handle:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if (
            whole == len(content) or _object(content[whole:]) is not None
        ):  # an editor may have left the end of the line out
            return 0
        os.ftruncate(handle, whole)
        return len(content) - whole


def rewrite(path: Path, change: Callable[[list[dict]], list[dict]]) -> tuple[int, int]:
    """Put other lines in the place of a file's; a reader finds the old ones or the new ones.

    Parameters
    ----------
    change : callable
        The objects of the file in, the new ones out.

    Returns
    -------
    tuple of int
        Lines that were in the file, damaged ones included, and lines that are.

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
    """The file, made if there is none, while no other process writes to it."""
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
            # Another process may have put a new file in its place meanwhile.
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

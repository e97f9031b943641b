# SPDX-License-Identifier: Apache-2.0
"""A function in a fork of this process, which has one thread: it may abort, hang, or take all memory there."""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from smartmem_tvm.errors import UserError

_PAUSE_SECONDS = 0.002
_ALIGNMENT = 64  # bytes; vector instructions count on it
_VALUE, _REFUSED, _FAILED, _NO_MEMORY = range(4)


class Stopped(Exception):
    """The function did not come to its end: it says how it ended."""


def file_in_memory() -> IO[bytes]:
    """A file without a name, for what goes from one process to another."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("smartmem"), "w+b")
    return tempfile.TemporaryFile()


def write(content: object, file: IO[bytes]) -> None:
    """Write an object into an empty file, its arrays where `read` finds them without a copy."""
    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(content, protocol=5, buffer_callback=arrays.append)
    raws = [each.raw() for each in arrays]
    sizes = struct.pack(f"<{len(raws) + 2}Q", len(raws), len(head), *(raw.nbytes for raw in raws))
    for part in (sizes, head, *raws):
        file.write(part)
        file.write(bytes(-file.tell() % _ALIGNMENT))
    file.flush()


def read(file: IO[bytes]) -> Any:
    """What `write` wrote; arrays are views of the file's pages, of which a write makes copies of its own."""
    pages = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    count, head = struct.unpack_from("<2Q", pages)
    sizes = (head, *struct.unpack_from(f"<{count}Q", pages, 16))
    at, parts = -(-8 * (count + 2) // _ALIGNMENT) * _ALIGNMENT, []
    for size in sizes:
        parts.append(memoryview(pages)[at : at + size])
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return pickle.loads(parts[0], buffers=parts[1:])


def run_forked(
    function: Callable,
    arguments: tuple,
    seconds: float,
    memory: int | None,
    answer: IO[bytes],
    wanted: Callable[[], bool],
) -> None:
    """Call a function for what it returns, which is written into a file; see `outcome`.

    Parameters
    ----------
    seconds : float
        After which it is stopped.
    memory : int, optional
        Bytes that it may take, beyond those of this process.
    answer : file
        Gets what came of it.
    wanted : callable
        Asked again and again: if not, it is stopped.

    Raises
    ------
    Stopped
        If it crashed, or took longer.
    """
    child = os.fork()
    if not child:
        _run(function, arguments, memory, answer)
    status = _wait(child, time.monotonic() + seconds, wanted)
    if status:
        raise Stopped(f"it ended with {os.waitstatus_to_exitcode(status)}")


def outcome(answer: IO[bytes]) -> Any:
    """What the function returned.

    Raises
    ------
    UserError
        The function's own.
    Stopped
        If it took too much memory.
    RuntimeError
        With the traceback of any other error of the function.
    """
    kind, value = read(answer)
    if kind == _REFUSED:
        raise UserError(value)
    if kind == _FAILED:
        raise RuntimeError(value)
    if kind == _NO_MEMORY:
        raise Stopped(value)
    return value


def _run(function: Callable, arguments: tuple, memory: int | None, answer: IO[bytes]) -> None:
    """Ends the process, without what others have registered for its end."""
    import resource

    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with at_most(memory) if memory is not None else nullcontext():
            found = _called(function, arguments)
        write(found, answer)
        status = 0
    finally:
        os._exit(status)


def _called(function: Callable, arguments: tuple) -> tuple[int, Any]:
    try:
        return _VALUE, function(*arguments)
    except UserError as error:
        return _REFUSED, str(error)
    except MemoryError:
        return _NO_MEMORY, "it takes too much memory"
    except Exception:
        return _FAILED, traceback.format_exc().encode(errors="backslashreplace").decode()


@contextmanager
def at_most(memory: int) -> Iterator[None]:
    """Let this process take so many bytes more; what asks for more fails, as where there is no memory left."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        limits = [pages * resource.getpagesize() + memory, *(each for each in before if each != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    except (ImportError, OSError, ValueError):  # other systems
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _wait(child: int, deadline: float, wanted: Callable[[], bool]) -> int:
    """The status of a process that has ended, by itself, because it was late or because nobody wants it any more."""
    try:
        while time.monotonic() < deadline and wanted():
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            time.sleep(_PAUSE_SECONDS)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]

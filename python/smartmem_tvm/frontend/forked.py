# SPDX-License-Identifier: Apache-2.0
"""Call a function in a fork of this process, which has one thread: there it may abort, hang or take all memory."""

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
_ALIGNMENT = 64  # bytes; vector instructions rely on it
_VALUE, _REFUSED, _FAILED, _NO_MEMORY = range(4)


class Stopped(Exception):
    """The function did not return; the text says how it ended."""


def file_in_memory() -> IO[bytes]:
    """Return a file without a name, to pass data from one process to another."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("smartmem"), "w+b")
    return tempfile.TemporaryFile()


def write(content: object, file: IO[bytes]) -> None:
    """Write an object into an empty file, with its arrays in places from which `read` maps them without a copy."""
    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(content, protocol=5, buffer_callback=arrays.append)
    raws = [each.raw() for each in arrays]
    sizes = struct.pack(f"<{len(raws) + 2}Q", len(raws), len(head), *(raw.nbytes for raw in raws))
    for part in (sizes, head, *raws):
        file.write(part)
        file.write(bytes(-file.tell() % _ALIGNMENT))
    file.flush()


def read(file: IO[bytes]) -> Any:
    """Return the object that `write` wrote; its arrays are views of the file's pages, copied on write."""
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
    """Call a function in a fork, which writes its result into a file; see `outcome`.

    Parameters
    ----------
    seconds : float
        The time after which it is stopped.
    memory : int, optional
        Bytes that it may allocate beyond those of this process.
    answer : file
        The file for the result.
    wanted : callable
        Called repeatedly; once it returns False, the function is stopped.

    Raises
    ------
    Stopped
        If it crashed or ran out of time.
    """
    child = os.fork()
    if not child:
        _run(function, arguments, memory, answer)
    status = _wait(child, time.monotonic() + seconds, wanted)
    if status:
        raise Stopped(f"it ended with {os.waitstatus_to_exitcode(status)}")


def outcome(answer: IO[bytes]) -> Any:
    """Return the function's result.

    Raises
    ------
    UserError
        If the function raised it.
    Stopped
        If it ran out of memory.
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
    """Call the function, write its outcome, and end the process without its exit handlers."""
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
    """Limit what this process may still allocate to `memory` bytes; a larger allocation fails with MemoryError."""
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
    """Return the status of a process once it has ended by itself, or was killed after the deadline or when unwanted."""
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

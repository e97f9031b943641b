# SPDX-License-Identifier: Apache-2.0
"""Limits for what a damaged model may do: take all memory; abort or hang, in a copy of this process."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from smartmem_tvm.errors import UserError

_FAILED = 1
_LONGEST_REASON = 4096  # bytes, which a pipe takes at once
_PAUSE_SECONDS = 0.002
_STUCK_SECONDS = 1.0  # of sleep, in which nothing is computed
_TRIES = 8
_SECONDS = 900  # more than the preparation of any graph takes that compiles at all


def model_apart(make: Callable[[], onnx.ModelProto], name: str, memory: int) -> onnx.ModelProto:
    """Return what a function makes of a model with the help of ONNX's libraries, which abort on some graphs.

    Parameters
    ----------
    make
        Is called in a copy of this process.
    name : str
        What messages call the model.
    memory : int
        Bytes that it may take, beyond those of this process.

    Raises
    ------
    UserError
        Those of the function; and if the copy crashed, took longer than any model takes, or took more memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        made, refused, failed = (Path(folder) / each for each in ("made", "refused", "failed"))

        def call() -> None:
            try:
                made.write_bytes(make().SerializeToString())
            except UserError as err:
                refused.write_text(str(err), "utf-8", "backslashreplace")
            except MemoryError:
                raise
            except Exception:
                failed.write_text(traceback.format_exc(), "utf-8", "backslashreplace")

        try:
            apart(call, _SECONDS, memory)
        except Stopped as err:
            raise UserError(
                f"{name} has a graph that ONNX's libraries fail on ({err or 'it takes too much memory'}), as where its "
                f"shapes and attributes contradict each other; export it again."
            ) from err
        if refused.exists():
            raise UserError(refused.read_text("utf-8"))
        if failed.exists():
            raise RuntimeError(failed.read_text("utf-8"))
        return onnx.ModelProto.FromString(made.read_bytes())


class Stopped(Exception):
    """The copy did not come to its end: it says how it ended."""


class _Stuck(Exception):
    """The copy waits for a lock of a thread that it has no copy of."""


def apart(call: Callable[[], object], seconds: float, memory: int) -> None:
    """Call a function for what it writes into files.

    A copy of a process has its locks as they are, and none of its threads: what a thread of ONNX Runtime's holds in
    this moment stays locked, about once in a thousand times. Such a copy is stopped, and another one made.

    Parameters
    ----------
    seconds : float
        After which it is stopped.
    memory : int
        Bytes that it may take, beyond those of this process.

    Raises
    ------
    Stopped
        If it raised something, crashed, took longer or took more.
    """
    if not hasattr(os, "fork"):
        call()
        return
    for _ in range(_TRIES):
        try:
            _in_copy(call, seconds, memory)
            return
        except _Stuck:
            continue
    raise Stopped("it waits for other threads of this process")


def _in_copy(call: Callable[[], object], seconds: float, memory: int) -> None:
    mine, other = os.pipe()
    child = os.fork()
    if not child:
        _run(call, memory, other)
    os.close(other)
    with os.fdopen(mine, "rb") as said:
        status = _wait(child, time.monotonic() + seconds)
        if status:
            reason = said.read().decode(errors="replace")
            raise Stopped(reason or f"it ended with {os.waitstatus_to_exitcode(status)}")


def _run(call: Callable[[], object], memory: int, said: int) -> None:
    """Ends the process, without what others have registered for its end."""
    import resource

    status = _FAILED
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with at_most(memory):
            call()
        status = 0
    except BaseException as error:
        os.write(said, str(error).encode(errors="replace")[:_LONGEST_REASON])
    finally:
        os._exit(status)


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


def _wait(child: int, deadline: float) -> int:
    """The status of a process that has ended, by itself or because it was late."""
    work, since = None, time.monotonic()
    try:
        while (now := time.monotonic()) < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            if now - since > _STUCK_SECONDS / 4 and (new := _work(child)) != work:
                work, since = new, now
            if work is not None and now - since > _STUCK_SECONDS:
                raise _Stuck
            time.sleep(_PAUSE_SECONDS)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _work(process: int) -> tuple | None:
    """The processor time of a process that sleeps; None if it does not, or waits for a copy of its own."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        copies = Path(f"/proc/{process}/task/{process}/children").read_text().strip()
    except OSError:  # other systems
        return None
    return (facts[11], facts[12]) if facts[0] == "S" and not copies else None

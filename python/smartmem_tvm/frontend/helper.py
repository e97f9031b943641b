# SPDX-License-Identifier: Apache-2.0
"""A helper process without threads and without TVM, whose forks call ONNX's libraries.

A fork of this process itself would copy the locks of all its threads but none of the threads: a lock that one of them
holds would stay locked. The helper is a fresh Python process, started when it is first needed. It imports numpy, onnx,
ONNX Runtime and the modules of this package that change graphs (0.8 s and 73 MB, on two busy cores of a Xeon with
AVX-512, 2026-11), and forks once for each call, which takes milliseconds. ONNX Runtime's import leaves a sleeping
thread; 1,500 forks that ran a session all succeeded. The helper ends with this process.

Arguments and results lie in files in memory, whose descriptors are sent: no data is copied through a pipe.
"""

from __future__ import annotations

import importlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from smartmem_tvm.frontend.forked import Stopped, file_in_memory, outcome, read, run_forked, write

_log = logging.getLogger(__name__)

# `smartmem_tvm.frontend` itself would import TVM, which takes seconds and is not used here.
_MAIN = """
import sys
sys.path[:] = sys.argv[3:]
import types
package = types.ModuleType("smartmem_tvm.frontend")
package.__path__ = [sys.argv[2]]
sys.modules[package.__name__] = package
from smartmem_tvm.frontend.helper import serve
serve(int(sys.argv[1]))
"""
_IMPORTS = ("onnx.reference", "onnxruntime", "smartmem_tvm.frontend.prepare", "smartmem_tvm.frontend.reference_run")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_TRIES = 2  # the system may kill the helper when memory runs out

serving = False
"""Whether this process is the helper, or a fork of it."""


class _Helper:
    """The helper process and the socket on which it receives its work."""

    def __init__(self):
        self.socket, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(Path(__file__).parent), *sys.path]
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,  # Ctrl-C only reaches this process
            )

    def end(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()


_helper: _Helper | None = None
_lock = threading.Lock()  # of `_helper` and its socket


def ask(function: Callable, arguments: tuple, seconds: float, memory: int | None) -> Any:
    """Call a function in a fork of the helper, or of this process if it is the helper, and return its result.

    Parameters
    ----------
    function : callable
        A function of a module that does not import TVM.
    arguments : tuple
        The arguments; they and the result can be pickled.
    seconds, memory
        As in `forked.run_forked`.

    Raises
    ------
    Stopped
        If it crashed, ran out of time or ran out of memory.
    UserError, RuntimeError
        As `forked.outcome`.
    """
    with file_in_memory() as answer:
        if serving:
            run_forked(function, arguments, seconds, memory, answer, lambda: True)
            return outcome(answer)
        with file_in_memory() as work:
            write((function, arguments, seconds, memory), work)
            said = _done(work.fileno(), answer.fileno())
        if said:
            raise Stopped(said)
        return outcome(answer)


def is_possible() -> bool:
    """Whether a helper can run: the system forks, and the program is a Python interpreter."""
    name = Path(sys.executable or "").name.lower()
    return hasattr(os, "fork") and name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def _done(work: int, answer: int) -> str:
    """Have the helper do one piece of work; return how it ended, empty for success."""
    for _ in range(_TRIES):
        mine, theirs = socket.socketpair()
        with mine:
            with theirs:
                _hand_over([work, answer, theirs.fileno()])
            with mine.makefile("rb") as said:
                words = said.read().decode(errors="replace")
        if words:
            return words.removeprefix(_WELL)
        _restart()
    raise Stopped("the process that was to call them was killed")


_WELL = "well"


def _hand_over(descriptors: list[int]) -> None:
    global _helper
    with _lock:
        if _helper is None or _helper.process.poll() is not None:
            _helper = _Helper()
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: the reader restarts it
            socket.send_fds(_helper.socket, [b"."], descriptors)


def _restart() -> None:
    global _helper
    with _lock:
        if _helper is not None:
            _helper.end()
        _helper = None


def _forget() -> None:
    """Drop the helper in a fork of this process, since its socket is the parent's; a new one starts when needed."""
    global _helper, _lock
    _helper, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def serve(control: int) -> None:
    """Serve as the helper: fork for each piece of work until the process that started it has ended."""
    global serving
    serving = True
    for name in _IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)
    # The system reaps the attendants; each attendant waits for its own fork.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=control) as requests:
        while True:
            data, descriptors, _, _ = socket.recv_fds(requests, 1, 3)
            if not data:
                return
            if not os.fork():
                requests.close()
                _attend(*descriptors)
            for each in descriptors:
                os.close(each)


def _attend(work: int, answer: int, status: int) -> None:
    """Do one piece of work and end the process."""
    with ExitStack() as stack:
        stack.callback(os._exit, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        client = socket.socket(fileno=status)
        try:
            with os.fdopen(work, "rb") as file:
                given = read(file)
            with os.fdopen(answer, "w+b") as found:
                run_forked(*given, found, lambda: not select.select([client], [], [], 0)[0])
            client.sendall(_WELL.encode())
        except BaseException as error:
            client.sendall((str(error) or type(error).__name__).encode(errors="replace"))

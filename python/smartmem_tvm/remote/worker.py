# SPDX-License-Identifier: Apache-2.0
"""The process of one session: the functions that a client may call, and TVM's loop that calls them.

Each session has its own process, so that the effects of its code, crashes and leaks end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from .processes import die_with


def load_tvm() -> None:
    """Import only TVM's runtime and the devices, without the compiler, in half the time."""
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    import tvm  # noqa: F401

    import _smartmem_opencl

    _smartmem_opencl.load()  # TVM loads it by itself if this package is installed, not only on the path


def fork(conn: socket.socket, folder: Path, close: Callable[[], None]) -> int:
    """Start a process that serves a session, and return its id; it leads a process group.

    Parameters
    ----------
    conn : socket
        The connection to the client, greetings exchanged.
    folder : Path
        The folder for uploads.
    close : callable
        Closes the server's own resources in the new process.
    """
    parent = os.getpid()
    _flush()
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):  # the child does so itself, and may already have ended
            os.setpgid(child, child)
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        die_with(parent)
        _default_signals()
        close()
        os.chdir(folder)
        serve(conn.detach(), folder)
        status = 0
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        try:
            _flush()
        finally:  # the code after the call of this function belongs to the server's process
            os._exit(status)


def serve(descriptor: int, folder: Path) -> None:
    """Serve the session of a socket until the client closes it."""
    import tvm_ffi

    from ..tune.host import run_threads
    from . import about

    functions = {
        "tvm.rpc.server.workpath": lambda name: str(_inside(folder, name)),
        "tvm.rpc.server.load_module": lambda name: _load(_inside(folder, name)),
        "tvm.rpc.server.listdir": lambda name: ",".join(sorted(each.name for each in _inside(folder, name).iterdir())),
        about.ABOUT: about.about_json,
        about.DEVICES: about.devices_json,
    }
    for name, function in functions.items():
        tvm_ffi.register_global_func(name, function, override=True)
    # By default TVM uses half of the cores, and never more than the number that it reads here first.
    threads = run_threads()
    os.environ["TVM_NUM_THREADS"] = str(threads)
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
    tvm_ffi.get_global_func("rpc.ServerLoop")(descriptor)


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file of this session; a client cannot write outside of its folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{name} is outside of the session's folder")
    return path


def _load(path: Path) -> object:
    """Load a library, or an archive of objects, which is linked first if there is a linker."""
    import tvm

    return tvm.runtime.load_module(str(path))


def _flush() -> None:
    """Flush buffered output, which both processes would write otherwise; ignore errors of a closed pipe."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(each, signal.SIG_DFL)

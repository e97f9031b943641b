# SPDX-License-Identifier: Apache-2.0
"""Python functions run in processes of their own, on the fake OpenCL driver or on a real one.

A process opens the OpenCL library once, and the fake driver reads its settings then, so every configuration needs a
process: a fork of one that has already imported TVM. The function's arguments and result travel as JSON.
"""

import atexit
import fcntl
import functools
import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _smartmem_opencl

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCES = TESTS / "native" / "fake_opencl"
FLAGS = ("-std=c++20", "-O0", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread")


@dataclass(frozen=True)
class Outcome:
    """A child process's outcome: its function's result, its output, and the fake driver's report at its exit."""

    value: Any
    stderr: str
    report: dict[str, Any]


def _compile(arguments: list) -> None:
    done = subprocess.run(["g++", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _make(flags: tuple[str, ...], folder: Path) -> None:
    """Compile the sources as one: the headers take most of the time, and are read once instead of seven times."""
    together = folder / "fake_opencl.cc"
    together.write_text("".join(f'#include "{source}"\n' for source in sorted(SOURCES.glob("*.cc"))))
    _compile([*FLAGS, *flags, "-shared", together, "-o", folder / "libfake_opencl.so"])


@functools.cache
def fake_library(*flags: str) -> Path:
    """Return the fake driver's path, compiling it with extra flags if needed; workers of a test run share it."""
    inputs = [*sorted(SOURCES.iterdir()), ROOT / "native" / "cl.h"]
    key = hashlib.sha256(repr((FLAGS, flags)).encode() + b"".join(path.read_bytes() for path in inputs))
    home = ROOT / "build" / "fake_opencl"
    home.mkdir(parents=True, exist_ok=True)
    finished = home / key.hexdigest()[:16]
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            with tempfile.TemporaryDirectory(dir=home) as folder:
                made = Path(folder) / "made"
                made.mkdir()
                _make(flags, made)
                made.rename(finished)
    return finished / "libfake_opencl.so"


# Variables that a process must have when it starts; a fork of the server can set all others later.
_AT_START = ("LD_PRELOAD", "LD_LIBRARY_PATH", "SMARTMEM_TEST_LIBRARY")


class _ForkServer:
    """A process that has imported TVM, has opened no driver, and forks a child on request.

    Importing TVM takes more than a second, and hundreds of children do little else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A fork copies one thread only, so OpenBLAS must not have started others.
        environment = {**_environment(), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, TESTS / "opencl_child.py", "--serve"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.kill)

    def run(self, arguments: list[str], environment: dict[str, str], folder: Path, timeout: float) -> tuple[int, str]:
        """Return a child's exit code and output; it is killed after `timeout` seconds."""
        printed = folder / "printed"
        os.mkfifo(printed)  # not a file, which would be truncated where a test limits the size of files
        with self._lock, ThreadPoolExecutor(1) as reader:
            text = reader.submit(printed.read_text, encoding="utf-8", errors="replace")
            self._send({"arguments": arguments, "environment": environment, "printed": str(printed)})
            child = int(self._process.stdout.readline())
            timer = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
            timer.start()
            code = int(self._process.stdout.readline())
            timer.cancel()
        return code, text.result()

    def _send(self, request: dict) -> None:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()


_server = functools.cache(_ForkServer)


def _environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SMARTMEM_OPENCL_", "FAKE_OPENCL_"))}
    return {**inherited, "SMARTMEM_OPENCL_CACHE": "0"}


def run_child(function: Callable, *args, timeout: float = 120, env: dict[str, str] | None = None) -> Outcome:
    """Call a function of a test module, by file and name, in a new process; a failure shows what it printed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result, report = folder / "result.json", folder / "report.json"
        environment = {**_environment(), "FAKE_OPENCL_REPORT": str(report), **(env or {})}
        where = inspect.getfile(inspect.unwrap(function))
        arguments = [where, function.__name__, json.dumps(args), str(result)]
        if any(variable in environment for variable in _AT_START):
            command = [sys.executable, TESTS / "opencl_child.py", *arguments]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
            code, printed = done.returncode, done.stdout + done.stderr
        else:
            code, printed = _server().run(arguments, environment, folder, timeout)
        assert code == 0, f"{function.__name__} ended with {code}\n{printed}"
        value = json.loads(result.read_text(encoding="utf-8"))
        return Outcome(value, printed, json.loads(report.read_text()) if report.exists() else {})


def run_with_fake(function: Callable, *args, env: dict[str, str] | None = None, **settings) -> Outcome:
    """Run a function on the fake driver; the settings are those of ``fake_opencl/settings.h``, in lower case."""
    chosen = {f"FAKE_OPENCL_{name.upper()}": str(value) for name, value in settings.items()}
    return run_child(function, *args, env={"SMARTMEM_OPENCL_LIBRARY": str(fake_library()), **chosen, **(env or {})})


def run_with_pocl(function: Callable, *args, devices: str = "pthread", env: dict[str, str] | None = None) -> Outcome:
    """Run a function on PoCL, the driver for the machine's CPU; ``"pthread pthread"`` makes two devices."""
    assert list(Path("/etc/OpenCL/vendors").glob("pocl*.icd")) or _smartmem_opencl.extra_driver(), (
        "these tests need PoCL: pip install 'smartmem-tvm[pocl]'"
    )
    return run_child(function, *args, env={"POCL_DEVICES": devices, **(env or {})})

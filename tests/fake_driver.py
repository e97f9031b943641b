# SPDX-License-Identifier: Apache-2.0
"""Python functions run in processes of their own, on the fake OpenCL driver or on a real one.

The OpenCL library is opened once in a process and the fake reads its settings when it is opened, so every
configuration is a process. The function's arguments and result travel as JSON.
"""

import fcntl
import functools
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _smartmem_opencl

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCES = TESTS / "native" / "fake_opencl"
FLAGS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread")


@dataclass(frozen=True)
class Outcome:
    """What a child process leaves: its function's result, what it printed, the fake driver's report at its exit."""

    value: Any
    stderr: str
    report: dict[str, Any]


def _compile(arguments: list) -> None:
    done = subprocess.run(["g++", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _make(flags: tuple[str, ...], folder: Path) -> None:
    """Compile the sources next to each other: four seconds."""

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        _compile([*FLAGS, *flags, "-c", source, "-o", target])
        return target

    with ThreadPoolExecutor(4) as pool:
        objects = list(pool.map(compile_one, sorted(SOURCES.glob("*.cc"))))
    _compile(["-shared", *flags, *objects, "-o", folder / "libfake_opencl.so"])


@functools.cache
def fake_library(*flags: str) -> Path:
    """Path of the fake driver, compiled with extra flags if it is not yet; workers of a test run share it."""
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


def run_child(function: Callable, *args, timeout: float = 120, env: dict[str, str] | None = None) -> Outcome:
    """Call a function of a test module, by file and name, in a new process; a failure shows what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        result, report = Path(folder) / "result.json", Path(folder) / "report.json"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SMARTMEM_OPENCL_", "FAKE_OPENCL_"))}
        environment = {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
            "SMARTMEM_OPENCL_CACHE": "0",
            "FAKE_OPENCL_REPORT": str(report),
            **(env or {}),
        }
        where = inspect.getfile(inspect.unwrap(function))
        command = [sys.executable, TESTS / "opencl_child.py", where, function.__name__, json.dumps(args), result]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"{function.__name__} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        value = json.loads(result.read_text(encoding="utf-8"))
        return Outcome(value, done.stderr, json.loads(report.read_text()) if report.exists() else {})


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

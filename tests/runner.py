# SPDX-License-Identifier: Apache-2.0
"""The runner of native/run, built again only if its sources change, and calls of it."""

import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import tvm
import tvm_ffi

import command_outcome
from smartmem_tvm.remote import runner

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = tuple(Path(package.__file__).parent / "lib" for package in (tvm, tvm_ffi))


@functools.cache
def built(kind: str = "None", flags: str = "") -> Path:
    """Return a folder with the program, its library and TVM's; compiled without optimization, in fifteen seconds."""
    files = [path for path in sorted((ROOT / "native" / "run").rglob("*")) if path.is_file()]
    key = hashlib.sha256(repr((kind, flags, *map(str, LIBRARIES))).encode() + b"".join(map(Path.read_bytes, files)))
    home = ROOT / "build" / "runner"
    home.mkdir(parents=True, exist_ok=True)
    finished = home / key.hexdigest()[:16]
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of a test run share it
        if not finished.exists():
            with tempfile.TemporaryDirectory(dir=home) as folder:
                _build(Path(folder), kind, flags).rename(finished)
    return finished


def _build(folder: Path, kind: str, flags: str) -> Path:
    before = os.environ.get("CXXFLAGS")
    os.environ["CXXFLAGS"] = flags  # CMake reads it
    try:
        runner.build(runner.Machine("", LIBRARIES), [], folder / "made", kind)
    finally:
        os.environ.pop("CXXFLAGS")
        if before is not None:
            os.environ["CXXFLAGS"] = before
    for name, place in zip(runner.RUNTIME, LIBRARIES):
        (folder / "made" / name).symlink_to(place / name)
    return folder / "made"


class Outcome(command_outcome.Outcome):
    """Exit code and output of one call of the program."""

    @property
    def sentence(self) -> str:
        """Return the error of a call that failed as it should: one line, exit code 2, no other output."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("smartmem_run: error: ") and self.err.count("\n") == 1, self.err
        return self.err.removeprefix("smartmem_run: error: ").strip()


def call(*arguments: object, program: Path | None = None, before: tuple[str, ...] = (), **variables: str) -> Outcome:
    """Run the program without Python's variables in its environment."""
    command = [*before, program or built() / runner.PROGRAM, *arguments]
    environment = {"PATH": "/usr/bin", "TVM_NUM_THREADS": "1", "TVM_BIND_THREADS": "0", **variables}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, env=environment)
    return Outcome(done.returncode, done.stdout, done.stderr)

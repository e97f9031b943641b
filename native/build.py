# SPDX-License-Identifier: Apache-2.0
"""Builds the native libraries: ``python native/build.py``, and from setup.py at installation.

Only a compiler is asked for: neither Python's headers (they are no Python modules), nor OpenCL's, nor TVM's
source. TVM's libraries are not linked either. They would be found at one place while building and at another when
running, and ``import tvm`` has loaded them globally before a library is opened: what it lacks is found there. If TVM
lacks it too, opening fails and names the symbol.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
VERSION = runpy.run_path(str(NATIVE.parent / "python" / "smartmem_tvm" / "_version.py"))
LIBRARY = Path("smartmem_tvm", "lib", "opencl.so")
# Where each library goes, and which folder here its sources are in.
LIBRARIES = {
    LIBRARY: ".",
    LIBRARY.with_name("stream.so"): "stream",
    LIBRARY.with_name("threads.so"): "threads",
}
FLAGS = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-pthread"]


class BuildError(Exception):
    """A library cannot be built; the message says why and, after a colon, what to do."""


def build(output: Path, objects: Path, sources: str = ".") -> Path:
    """Compile what has changed since the last time, and link.

    Parameters
    ----------
    output
        Where the library goes.
    objects
        A folder for what is compiled; kept between calls, it saves compiling again.
    sources
        The folder below `NATIVE`, one of `LIBRARIES`.

    Raises
    ------
    BuildError
        If there is no compiler, not the TVM that is needed, or the compiler refuses.
    """
    command = [*_compiler(), *FLAGS, *os.environ.get("CXXFLAGS", "").split()]
    # Objects of other flags or another TVM do not fit; where TVM's headers are does not matter, pip moves them.
    objects = objects / sources / f"{zlib.crc32(repr((command, VERSION['TVM_PINS'])).encode()):08x}"
    command += _include_flags()
    objects.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    # In threads, because each file takes seconds and waits in a process of its own.
    with ThreadPoolExecutor(_jobs()) as pool:
        files = sorted((NATIVE / sources).glob("*.cc"))
        compiled = list(pool.map(lambda source: _compile(command, source, objects), files))
    _run([*command, "-shared", *map(str, compiled)], output)
    return output


def _compile(command: list[str], source: Path, objects: Path) -> Path:
    output = objects / f"{source.stem}.o"
    headers = (*source.parent.glob("*.h"), *(NATIVE / "compat").rglob("*.h"))
    newest = max(path.stat().st_mtime for path in (source, *headers, Path(__file__)))
    if not output.exists() or output.stat().st_mtime < newest:
        _run([*command, "-c", str(source)], output)
    return output


def _run(command: list[str], output: Path) -> None:
    # Written to another name first: an interrupted compiler leaves nothing that looks finished.
    unfinished = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    try:
        done = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"the compiler {command[0]} could not be started ({error.strerror}): correct CXX") from error
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        unfinished.unlink(missing_ok=True)
        errors = [line for line in done.stderr.splitlines() if "error: " in line] or [f"exit code {done.returncode}"]
        raise BuildError(f"{command[0]} failed on {output.stem} ({errors[0].strip()}): use GCC 10, Clang 12 or newer")
    unfinished.replace(output)


def _compiler() -> list[str]:
    """Like make and setuptools, CXX counts first."""
    if named := os.environ.get("CXX", "").split():
        return named
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler was found: install one, `apt-get install g++` on Debian and Ubuntu")


def _include_flags() -> list[str]:
    """TVM's headers, found without importing TVM: that takes seconds, and needs its libraries to load."""
    if problem := VERSION["version_problem"]():
        raise BuildError(problem.rstrip("."))
    packages = (Path(importlib.util.find_spec(name).origin).parent for name in ("tvm", "tvm_ffi"))
    # First our declarations of what TVM's headers include and its wheel does not have.
    flags = ["-I", str(NATIVE / "compat")]
    return flags + [flag for package in packages for flag in ("-isystem", str(package / "include"))]


def _jobs() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    root = NATIVE.parent
    for library, sources in LIBRARIES.items():
        try:
            print(build(root / "python" / library, root / "build" / "native", sources).relative_to(root))
        except BuildError as error:
            sys.exit(f"The library {library.name} was not built: {error}.")

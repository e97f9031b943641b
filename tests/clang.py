# SPDX-License-Identifier: Apache-2.0
"""OpenCL C compiled by clang for a generic device, to check kernels that no driver here accepts."""

import re
import shutil
import subprocess
from pathlib import Path

from smartmem_tvm.tools.isa.sources import programs

__all__ = ["compiler", "errors", "programs"]

# Without a target's driver, flags have to define the version and declare the functions of OpenCL C.
FLAGS = [
    "-x", "cl", "-cl-std=CL2.0", "--target=spir64", "-D__OPENCL_VERSION__=200", "-fsyntax-only", "-w",
    "-Xclang", "-finclude-default-header", "-Xclang", "-fdeclare-opencl-builtins",
]  # fmt: skip
NEWEST = 30


def compiler() -> str:
    """Return clang's path under Debian's versioned name; PoCL depends on one."""
    found = [path for path in map(shutil.which, ["clang", *(f"clang-{n}" for n in range(NEWEST, 13, -1))]) if path]
    if not found:
        raise RuntimeError("there is no clang on this machine: apt-get install clang")
    return found[0]


def errors(sources: dict[str, str], folder: Path, *flags: str) -> dict[str, str]:
    """Return the first error of each program that clang refuses; clang is started once for all programs."""
    paths = {name: folder / f"{name}.cl" for name in sources}
    for name, path in paths.items():
        path.write_text(sources[name], encoding="utf-8")
    command = [compiler(), *FLAGS, *flags, *map(str, paths.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    first: dict[str, str] = {}
    for name, message in re.findall(r"/(\w+)\.cl:\d+:\d+: (?:fatal )?error: (.*)", done.stderr):
        first.setdefault(name, message)
    assert bool(first) == (done.returncode != 0), done.stderr
    return first

# SPDX-License-Identifier: Apache-2.0
"""The declarations of setup.py, and processes in which the package appears to be installed."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import smartmem_tvm

ROOT = Path(__file__).resolve().parent.parent
PYTHON = Path(smartmem_tvm.__file__).resolve().parent.parent


def declared() -> dict:
    """Return the arguments that setup.py gives to setuptools."""
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    return setup.call_args.kwargs


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return environment variables for a process that finds the package and its entry points, installed or not."""
    info = folder / "smartmem_entry_points-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: smartmem-entry-points\nVersion: 1\n")
    groups = declared()["entry_points"].items()
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n" + "\n".join(lines) + "\n" for group, lines in groups))
    path = os.pathsep.join([str(PYTHON), str(folder), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **variables}


def python(folder: Path, program: str, **variables: str) -> list[str]:
    """Return the lines that a program prints in such a process."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment(folder, **variables), check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()

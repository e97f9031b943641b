# SPDX-License-Identifier: Apache-2.0
"""A board that is a server of TVM's wheel for aarch64, in a process that qemu runs."""

from pathlib import Path

import pytest

from rpc_processes import PYTHON, device, tracker

ROOT = Path(__file__).resolve().parents[2] / ".aarch64"
INTERPRETER = ("qemu-aarch64-static", str(ROOT / "usr" / "bin" / "python3"))


@pytest.fixture(scope="session")
def board(tmp_path_factory):
    """The options that name it to a command."""
    assert ROOT.is_dir(), "there is no Python for aarch64: `make test-aarch64` installs one and runs these tests"
    folder, ours = tmp_path_factory.mktemp("board"), tmp_path_factory.mktemp("package")
    for path in (PYTHON / "smartmem_tvm", *PYTHON.glob("_smartmem_*.py")):
        (ours / path.name).symlink_to(path)  # beside it are packages for this machine's CPU
    paths = f"{ours}:{ROOT / 'site'}"
    there = {"python": INTERPRETER, "QEMU_LD_PREFIX": str(ROOT), "PYTHONPATH": paths}
    with tracker(folder) as known, device(folder, known, "board", **there):
        yield ("--tracker", known.address, "--key", "board")

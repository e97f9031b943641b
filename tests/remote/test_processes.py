# SPDX-License-Identifier: Apache-2.0
"""Processes end together, also those that a process has started in turn."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from rpc_processes import PYTHON, until
from smartmem_tvm.remote.processes import end_group

# Prints the id of a process that it starts, and waits.
PARENT = """
import os, subprocess, sys
os.setpgid(0, 0)
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""
SLEEPER = "import time; time.sleep(60)"
FOLLOWER = f"""
import os
from smartmem_tvm.remote.processes import die_with
die_with(os.getppid())
print("ready", flush=True)
{SLEEPER}
"""


def start(child: str) -> tuple[subprocess.Popen, int]:
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    command = [sys.executable, "-c", PARENT, child]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    return parent, int(parent.stdout.readline())


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its exit code does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_group_ends_with_its_leaders_children():
    parent, child = start(SLEEPER)
    with parent:
        assert alive(child)
        status = end_group(parent.pid)
        assert os.WTERMSIG(status) == signal.SIGKILL
        until(lambda: not alive(child), seconds=5)
        parent.returncode = -signal.SIGKILL  # it was waited for already


def test_a_process_ends_with_the_one_that_started_it():
    parent, child = start(FOLLOWER)
    with parent:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        until(lambda: not alive(child), seconds=5)


def test_a_process_whose_parent_has_ended_already_ends_too():
    program = "from smartmem_tvm.remote.processes import die_with; die_with(1 << 22); print('still there')"
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")

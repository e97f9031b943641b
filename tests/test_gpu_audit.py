# SPDX-License-Identifier: Apache-2.0
"""The audit on a GPU: a kernel that takes too long becomes an entry, and the rest of the network is measured."""

import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from gpu_audit import NETWORKS as TAKEN
from gpu_audit import Running, alone, attempt, networks


def empty_row() -> dict:
    return {"seconds": {}, "failed": {}}


def search(seconds: float) -> None:
    """Search like a tuner that counts every error of a kernel as a failed kernel."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            time.sleep(0.05)


def test_its_networks_are_the_audit_s():
    assert set(TAKEN) <= set(networks())


def test_a_search_ends_at_its_limit():
    row, start = empty_row(), time.monotonic()
    with attempt(row, "torch", 1):
        search(20)
    assert time.monotonic() - start < 10
    assert row == {"seconds": {}, "failed": {"torch": "It took longer than 1 seconds."}}


@pytest.mark.parametrize("error", [RuntimeError("no\n  kernel"), None])
def test_a_system_that_ends_in_time(error):
    row = empty_row()
    with attempt(row, "torch", 20):
        if error:
            raise error
    assert row["failed"] == ({"torch": "no kernel"} if error else {}) and len(row["seconds"]) == (not error)


def until_it_ends(code: str, timeout: float = 60) -> dict:
    running = Running.of([sys.executable, "-c", code])
    while not running.ended(timeout):
        time.sleep(0.05)
    return running.row()


def test_a_search_that_says_much_is_not_stopped_by_it():
    code = "import sys; sys.stderr.write('tried a kernel\\n' * 100_000); print('said'); print('{\"seconds\": {}}')"
    assert until_it_ends(code) == {"seconds": {}}


def test_what_ends_badly_says_why():
    assert until_it_ends("import sys; sys.exit('No GPU.')") == {"error": "No GPU."}
    assert until_it_ends("import sys; sys.exit(1)") == {"error": "It said nothing."}
    assert "longer than --timeout" in until_it_ends("import time; time.sleep(60)", 0.5)["error"]


def test_kernels_are_timed_one_at_a_time_and_compiled_before_their_turn(tmp_path):
    ours, theirs = (os.open(tmp_path / "tried", os.O_CREAT | os.O_RDWR) for _ in range(2))
    free = []

    def kernel():
        try:
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(theirs, fcntl.LOCK_UN)
            free.append(True)
        except BlockingIOError:
            free.append(False)

    timed = alone(lambda kernel, repeat: [kernel() for _ in range(repeat)], ours)
    timed(kernel, repeat=2)
    timed(kernel, 1)
    assert free == [True, False, False, True, False]

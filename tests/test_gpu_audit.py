# SPDX-License-Identifier: Apache-2.0
"""The audit on a GPU: what takes too long becomes an entry, and the rest of the network is measured."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from gpu_audit import NETWORKS as TAKEN
from gpu_audit import attempt, networks


def empty_row() -> dict:
    return {"seconds": {}, "failed": {}}


def search(seconds: float) -> None:
    """Takes whatever happens to a kernel for a kernel that failed."""
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

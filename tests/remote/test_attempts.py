# SPDX-License-Identifier: Apache-2.0
"""Work is tried again, on another device of the key, and a lost device is left alone for a while."""

import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from rpc_processes import device, until
from smartmem_tvm.remote.attempts import Attempts
from smartmem_tvm.remote.borrow import DeviceBusy, DeviceLost
from smartmem_tvm.remote.keys import tracker_state
from smartmem_tvm.remote.session import request
from smartmem_tvm.remote.wire import parse_address


@pytest.fixture(scope="module")
def two(shared_tracker, tmp_path_factory):
    """Two devices of one key, by address."""
    folder = tmp_path_factory.mktemp("two")
    with device(folder, shared_tracker, "two") as first, device(folder, shared_tracker, "two") as second:
        yield {each.address: each for each in (first, second)}


def test_a_device_that_hangs_is_left_and_another_taken(shared_tracker, two):
    tried = []

    def work(session):
        tried.append(session.address)
        if len(tried) == 1:
            os.kill(two[session.address].sessions()[0], signal.SIGSTOP)
        with session.limit(0.5):
            return session.kinds()

    attempts = Attempts(shared_tracker.address, "two", cool_down=30, timeout=20)
    assert "cpu" in attempts.run(work)
    assert set(tried) == set(two)
    assert list(attempts.cooling) == [tried[0]]
    # For as long as it cools down, work goes to the other one.
    assert attempts.run(lambda session: session.address) == tried[1]


def test_what_one_learns_counts_for_those_who_wait(shared_tracker, two):
    attempts = Attempts(shared_tracker.address, "two", cool_down=30, timeout=20)
    with ThreadPoolExecutor(1) as pool, ExitStack() as held:
        first, second = (held.enter_context(request(shared_tracker.address, "two", 20)) for _ in two)
        waiting = pool.submit(attempts.run, lambda session: session.address)
        until(lambda: tracker_state(parse_address(shared_tracker.address))["two"].pending == 1)
        attempts.cooling[first.address] = time.monotonic() + 30
        first.close()
        time.sleep(0.5)
        second.close()
        assert waiting.result(20) == second.address


def test_a_device_that_is_the_only_one_is_waited_for(shared_tracker, shared_device):
    times = []

    def work(session):
        times.append(time.monotonic())
        if len(times) < 3:
            os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return session.kinds()

    assert Attempts(shared_tracker.address, "shared", cool_down=0.4).run(work)
    assert all(later - earlier >= 0.4 for earlier, later in itertools.pairwise(times))


def test_the_last_error_is_the_callers(shared_tracker, shared_device):
    tries = []

    def work(session):
        tries.append(session.address)
        os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return session.kinds()

    with pytest.raises(DeviceLost, match=shared_device.address):
        Attempts(shared_tracker.address, "shared", tries=2, cool_down=0.1).run(work)
    assert len(tries) == 2


def test_an_error_of_the_work_is_not_tried_again(shared_tracker, shared_device):
    tries = []

    def work(session):
        tries.append(session.address)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        Attempts(shared_tracker.address, "shared").run(work)
    assert len(tries) == 1


def test_a_device_that_cools_down_for_too_long_is_not_waited_for(shared_tracker, shared_device):
    attempts = Attempts(shared_tracker.address, "shared", tries=2, cool_down=60, timeout=0.5)

    def work(session):
        os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return session.kinds()

    with pytest.raises(DeviceBusy, match=r"within 0\.5 s .*1 left alone after an error"):
        attempts.run(work)

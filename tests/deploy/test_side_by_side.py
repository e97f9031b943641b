# SPDX-License-Identifier: Apache-2.0
"""Work that is done by several threads, prepared and taken by one."""

import threading
import time

import pytest

from smartmem_tvm.deploy.side_by_side import side_by_side
from smartmem_tvm.errors import UserError


def test_without_lanes_all_is_done_in_turn_by_the_caller():
    done = []

    def prepare(job):
        done.append(("prepare", job, threading.current_thread()))
        return job * 10

    def work(prepared):
        done.append(("work", prepared, threading.current_thread()))
        return prepared + 1

    results = list(side_by_side([1, 2], prepare, work))
    assert results == [(1, 11), (2, 21)]
    me = threading.current_thread()
    assert done == [("prepare", 1, me), ("work", 10, me), ("prepare", 2, me), ("work", 20, me)]


def test_lanes_work_at_the_same_time_and_the_caller_prepares():
    meeting = threading.Barrier(2, timeout=20)  # passed by two at a time only
    preparing = set()

    def work(job):
        meeting.wait()
        return threading.current_thread()

    def prepare(job):
        preparing.add(threading.current_thread())
        return job

    results = dict(side_by_side(range(6), prepare, work, lanes=2))
    assert sorted(results) == list(range(6))
    assert preparing == {threading.current_thread()} and len(set(results.values()) - preparing) == 2


def test_no_more_is_prepared_than_can_be_worked_on_soon():
    prepared, finished = [], threading.Semaphore(0)

    def work(job):
        assert finished.acquire(timeout=20)
        return job

    answers = side_by_side(range(10), lambda job: prepared.append(job) or job, work, lanes=2)
    finished.release()
    next(answers)
    assert len(prepared) == 3
    for _ in range(9):
        finished.release()
    assert len(list(answers)) == 9


@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("where", ["prepare", "work"])
def test_an_error_is_the_answer_to_its_own_job_only(lanes, where):
    def fail(job):
        if job == 1:
            raise RuntimeError("no")
        return job

    steps = {"prepare": lambda job: job, "work": lambda job: job, where: fail}
    results = dict(side_by_side(range(3), lanes=lanes, **steps))
    assert results[0] == 0 and results[2] == 2 and str(results[1]) == "no"


@pytest.mark.parametrize("lanes", [0, 2])
def test_an_error_of_the_users_ends_it_when_what_was_begun_is_done(lanes):
    begun, found, both = [], [], threading.Barrier(2, timeout=20)

    def work(job):
        begun.append(job)
        if lanes and job < 2:
            both.wait()
        if job == 1:
            raise UserError("no device")
        time.sleep(0.1)  # job 0 is still being worked on when 1 has failed
        return job

    with pytest.raises(UserError, match="no device"):
        for job, _ in side_by_side(range(100), lambda job: job, work, lanes):
            found.append(job)
    assert 0 in found and 1 not in found
    assert sorted({*found, 1}) == sorted(begun), "nothing that was done is lost"
    assert len(begun) <= 4


def test_nothing_is_begun_after_the_end():
    assert list(side_by_side(range(3), lambda job: job, lambda job: job, end=time.monotonic() - 1)) == []


def test_a_caller_who_leaves_ends_it():
    begun = []

    def work(job):
        begun.append(job)
        time.sleep(0.05)

    answers = side_by_side(range(100), lambda job: job, work, lanes=2)
    next(answers)
    answers.close()
    count = len(begun)
    time.sleep(0.15)
    assert len(begun) == count <= 4

# SPDX-License-Identifier: Apache-2.0
"""How often clocks are read, and in which order."""

import time

import pytest
from tvm.runtime.module import BenchmarkResult

from smartmem_tvm.executor.readings import CANDIDATE, Readings, evaluator_clock, host_clock, in_turns, kept, one_by_one


def test_turns_alternate_and_short_calls_are_repeated():
    order = []

    def call(name, seconds):
        def launch(times):
            order.append((name, times))
            time.sleep(seconds * times)

        return launch

    fast, slow = in_turns([host_clock(call("fast", 1e-4)), host_clock(call("slow", 3e-3))])
    assert 1e-4 <= fast < slow and slow >= 3e-3
    turns = order[6:]  # after three single calls of each, to see how long they take
    assert [name for name, _ in turns] == ["fast", "slow"] * (len(turns) // 2)
    assert len({times for name, times in turns if name == "fast"}) == 1
    assert {times for name, times in turns if name == "slow"} == {1}


def test_slow_kernels_take_fewer_turns():
    order = []

    def launch(times):
        order.append(times)
        time.sleep(0.25)

    in_turns([host_clock(launch)])
    assert 5 <= len(order) - 4 < 10


def test_a_kernel_by_itself_is_read_often_if_it_is_short_and_seldom_if_it_is_long():
    asked = []

    def clock(seconds):
        return lambda launches, readings: asked.append((launches, readings)) or [seconds] * readings

    assert one_by_one(clock(1e-4), CANDIDATE) == [1e-4] * 50
    assert one_by_one(clock(2e-2), CANDIDATE) == [2e-2] * 12
    assert one_by_one(clock(0.2), CANDIDATE) == [0.2] * 3
    assert asked == [(1, 3), (10, 50), (1, 3), (1, 12), (1, 3)]
    assert one_by_one(clock(0.0), Readings(1e-3, 5, 3, 1.0)) == [0.0] * 5


def test_what_goes_on_record_is_spread_over_the_readings():
    assert kept([float(n) for n in reversed(range(10))]) == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert kept([2.0, 1.0]) == [1.0, 1.0, 2.0, 2.0, 2.0]


def test_one_message_for_many_readings_and_sets_of_arguments_take_turns():
    made, called = [], []

    class Code:
        def time_evaluator(self, name, device, number, repeat):
            made.append((name, number, repeat))
            return lambda *arguments: called.append(arguments) or BenchmarkResult([1e-3] * repeat)

    clock = evaluator_clock(Code(), "kernel0", None, [(1, 2), (3, 4)])
    assert [clock(8, 1), clock(8, 1), clock(8, 3), clock(1, 1)] == [[1e-3], [1e-3], [1e-3] * 3, [1e-3]]
    assert made == [("kernel0", 8, 1), ("kernel0", 8, 3), ("kernel0", 1, 1)]
    assert called == [(1, 2), (3, 4), (1, 2), (3, 4)]


@pytest.mark.parametrize(("seconds", "turns"), [(1e-6, 100), (0.05, 40), (1.0, 5)])
def test_there_are_as_many_turns_as_there_is_time_for(seconds, turns):
    asked = []
    assert in_turns([lambda launches, readings: asked.append(readings) or [seconds] * readings]) == [seconds]
    assert asked == [3, *[1] * (1 + turns)]

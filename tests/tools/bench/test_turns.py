# SPDX-License-Identifier: Apache-2.0
"""Runs taken in turns, until the budget is spent."""

import pytest

from smartmem_tvm.tools.bench.turns import RunEffort, in_turns, medians, summary


def test_turns_and_budgets():
    calls = []

    def system(name, seconds):
        return lambda: calls.append(name) or seconds

    times = in_turns([system("a", 1.0), system("b", 3.0)], RunEffort(budget=5.0, least=2, most=4, pause=0.0))
    assert calls == ["a", "b"] * 3 + ["a"] * 2, "one round untimed; b leaves when its budget is spent"
    assert times == [[1.0] * 4, [3.0] * 2]


def test_runs_before_a_timed_one_are_not_counted():
    seconds = iter(range(100))
    times = in_turns([lambda: float(next(seconds))], RunEffort(budget=60.0, least=1, most=3, pause=0.0, settle=2))
    assert times == [[3.0, 6.0, 9.0]]


def test_calls_take_turns(monkeypatch):
    calls, clock = [], iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))

    def call(name, duration):
        calls.append(name)
        for _ in range(duration - 1):
            next(clock)

    seconds = medians([lambda: call("a", 1), lambda: call("b", 5)], rounds=3, warm_up=1)
    assert calls == ["a", "b"] * 4
    assert seconds == [1, 5]


def test_median_ignores_one_slow_round(monkeypatch):
    times = iter([0, 1, 0, 100, 0, 1])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    assert medians([lambda: None], rounds=3, warm_up=0) == [1]


def test_summary():
    assert summary([0.001 * n for n in range(1, 12)]) == pytest.approx({"median": 6, "p10": 2, "p90": 10, "runs": 11})
    assert summary([0.5]) == {"median": 500, "p10": 500, "p90": 500, "runs": 1}

# SPDX-License-Identifier: Apache-2.0
"""Measuring two things so that they can be compared."""

import os

import pytest

from matmul_model import matmuls
from smartmem_tvm.cli import timing


def test_calls_take_turns(monkeypatch):
    calls, clock = [], iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))

    def call(name, duration):
        calls.append(name)
        for _ in range(duration - 1):
            next(clock)

    seconds = timing.interleaved([lambda: call("a", 1), lambda: call("b", 5)], rounds=3, warmup=1)
    assert calls == ["a", "b"] * 4
    assert seconds == [1, 5]


def test_median_ignores_one_slow_round(monkeypatch):
    times = iter([0, 1, 0, 100, 0, 1])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    assert timing.interleaved([lambda: None], rounds=3, warmup=0) == [1]


def test_cores_are_those_of_this_process():
    assert 1 <= timing.usable_cores() <= len(os.sched_getaffinity(0))


def test_threads(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert timing.set_threads(None) == 1
    assert timing.set_threads(1) == 1


@pytest.mark.parametrize(
    "options", [("run",), ("stats", "--run"), ("bench",), ("profile",), ("tune", "-o", "records.jsonl")]
)
def test_too_many_threads(smartmem, options, tmp_path, monkeypatch):
    """Each of TVM's would keep a core busy."""
    monkeypatch.chdir(tmp_path)
    outcome = smartmem(*options, matmuls(tmp_path / "m.onnx", (8, 8)), "--threads", 99999)
    assert outcome.code == 2 and "99999 threads (--threads, or TVM_NUM_THREADS) are too many" in outcome.err



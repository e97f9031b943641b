# SPDX-License-Identifier: Apache-2.0
"""The share of the time in kernels far off what the device allows, as a result file has it."""

import pytest

import smartmem_tvm
from helpers import constant, module, op, random
from smartmem_tvm.analysis.roofline import Speed
from smartmem_tvm.pipeline import Options
from smartmem_tvm.runtime import speed
from smartmem_tvm.runtime.launch_times import TimedLaunch
from smartmem_tvm.tools.bench.columns import cells, columns_of, conditions, titles
from smartmem_tvm.tools.bench.slow_share import slow_kernels

SPEED = Speed("a machine", 1, {"float32": 1e6}, {"exp": 1e6}, ((1 << 10, 1e9),), launch=1.0)


@pytest.fixture(scope="module")
def compiled():
    return smartmem_tvm.compile(
        module(lambda x: (op.exp(x), op.matmul(x, constant(8, 8))), (4, 8)), options=Options(fuse=False)
    )


def test_launches_by_the_clock_of_a_device_have_none_of_the_host(compiled, monkeypatch):
    """Bounds are 32 and 256 microseconds; the kernels take 100 in two launches, and 2560."""
    monkeypatch.setattr(speed, "speed_of", lambda _: SPEED)
    launches = [TimedLaunch("tir_exp1", 5e-5), TimedLaunch("matmul1", 2.56e-3), TimedLaunch("tir_exp1", 5e-5)]
    found = slow_kernels(compiled, [], launches)
    assert found["slow_share"] == pytest.approx(2.56 / 2.66)
    assert found["of_roofline"] == pytest.approx((2 * 32 + 256) / 2660)
    (kernel,) = found["slow_kernels"]
    assert (kernel["kernel"], kernel["rule"], kernel["launches"]) == ("matmul1", "Matmul", 1)
    assert kernel["of_roofline"] == pytest.approx(0.1) and kernel["bound_by"] == "arithmetic"


def test_kernels_are_timed_where_no_launches_are_given(compiled, monkeypatch):
    monkeypatch.setattr(speed, "speed_of", lambda _: SPEED)  # a launch takes a second: nothing is slow
    found = slow_kernels(compiled, random((4, 8)))
    assert found.pop("of_roofline") > 1 and found == {"slow_share": 0, "slow_kernels": []}


def test_nothing_is_said_of_a_device_that_nobody_knows(compiled, monkeypatch):
    monkeypatch.setattr(speed, "speed_of", lambda _: None)
    assert slow_kernels(compiled, random((4, 8))) == {}


def test_the_table_shows_it_where_there_is_one():
    facts = {"kernels": 2, "layout_kernels": 0, "latency_ms": {"median": 1.0}}
    row = {"model": "m", "name": "m", "threads": 1, "in_turns": True, "machine": {}, "systems": {"smartmem": facts}}
    assert "4x off" not in titles(columns_of([row])) and len(conditions([row])) == 1
    row["systems"] = {"smartmem": {**facts, "slow_share": 0.125}, "tvm": facts}
    assert titles(columns_of([row]))[-1] == "4x off"
    assert [line[-1] for line in cells(row, columns_of([row]))] == ["12.5%", "-"]
    assert any("more than four times" in each for each in conditions([row]))

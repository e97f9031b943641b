# SPDX-License-Identifier: Apache-2.0
"""Several systems on one model: what each answers, and what becomes of one that fails."""

import os
import time

import pytest

from bench_systems import largest_difference, prepare
from smartmem_tvm.tools.bench.measure_systems import Method, Processes, measure
from smartmem_tvm.tools.bench.turns import RunEffort

FIRST = {"system": "ours", "brings_inputs": True, "adds": 0.5}
REFERENCE = {"system": "reference"}


def run(*requests, together=True, patience=30.0, side_by_side=False):
    effort = RunEffort(budget=0.05, least=2, most=4)
    method = Method(prepare, largest_difference, "reference", effort, together, patience, side_by_side)
    return measure(requests, method)


@pytest.mark.device
@pytest.mark.parametrize("together", [True, False])
def test_every_system_has_a_process_figures_and_an_error(together):
    found = run(FIRST, {"system": "slow", "seconds": 0.04, "adds": 2}, REFERENCE, together=together)
    assert list(found) == ["ours", "slow", "reference"]
    assert len({facts["process"] for facts in found.values()} | {os.getpid()}) == 4
    assert [found[name].get("relative_error") for name in found] == [0.5, 2.0, None]
    assert all(facts["kernels"] == 2 for facts in found.values()), "what a run tells replaces the facts before it"
    assert found["slow"]["latency_ms"]["median"] >= 40 > found["ours"]["latency_ms"]["median"]
    assert found["slow"]["latency_ms"]["runs"] == 2 and found["ours"]["latency_ms"]["runs"] == 4


@pytest.mark.device
def test_peaks_of_compiling_and_running_are_apart():
    found = run({**FIRST, "megabytes": 200}, REFERENCE)
    assert found["ours"]["peak_mb"]["compile"] > found["reference"]["peak_mb"]["compile"] + 150
    assert found["ours"]["peak_mb"]["run"] < found["ours"]["peak_mb"]["compile"] - 150


@pytest.mark.device
def test_a_system_for_a_range_of_sizes_is_prepared_once():
    method = Method(prepare, largest_difference, "reference", RunEffort(budget=0.05, least=2, most=2))
    processes, found = Processes(), []
    for size, ranges in ((3, "1..9"), (5, "1..9"), (4, "1..8")):
        request = {**FIRST, "shapes": {"x": (size,)}, "ranges": {"x": [ranges]}}
        found.append(measure([request, REFERENCE], method, processes))
    ours, reference = ([each[name]["process"] for each in found] for name in ("ours", "reference"))
    assert ours[0] == ours[1] != ours[2] and len(set(reference)) == 3
    assert [each["ours"]["relative_error"] for each in found] == [0.5] * 3
    assert found[0]["ours"]["peak_mb"]["compile"] == found[1]["ours"]["peak_mb"]["compile"]
    processes.only([REFERENCE])
    for process in ours:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_one_that_is_there_for_its_outputs_is_not_timed():
    found = run(FIRST, {**REFERENCE, "untimed": True})
    assert found["ours"]["relative_error"] == 0.5 and found["ours"]["latency_ms"]["runs"] >= 2
    assert "latency_ms" not in found["reference"] and "error" not in found["reference"]


@pytest.mark.device
def test_side_by_side_everything_slow_happens_at_once(tmp_path):
    requests = [FIRST, REFERENCE, {"system": "third"}]
    meeting = {"meet": (str(tmp_path), len(requests))}
    found = run(*({**each, **meeting} for each in requests), side_by_side=True)
    assert found["ours"].get("relative_error") == 0.5, found
    assert all(facts["latency_ms"]["runs"] >= 2 for facts in found.values())
    alone = run({**FIRST, "meet": (str(tmp_path / "none"), 2), "waits": 0.1}, REFERENCE)
    assert "waited in vain" in alone["ours"]["error"]


TROUBLE = {
    "refuses": "Tensor 'x' is odd; give an even one.",
    "breaks": "bad failed with ValueError (broken).",
    "dies": "bad was ended by signal SIGKILL, as happens when memory runs out.",
}


@pytest.mark.device
@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_system_that_fails_leaves_a_sentence_and_the_others(trouble):
    found = run(FIRST, {"system": "bad", "trouble": trouble}, REFERENCE)
    assert found["bad"] == {"error": TROUBLE[trouble]}
    assert found["ours"]["relative_error"] == 0.5
    assert found["reference"]["latency_ms"]["runs"] >= 2


@pytest.mark.device
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("side_by_side", [True, False])
def test_without_the_first_there_is_nothing_to_measure(together, side_by_side):
    found = run({**FIRST, "trouble": "refuses"}, REFERENCE, together=together, side_by_side=side_by_side)
    assert found == {"ours": {"error": TROUBLE["refuses"]}}


@pytest.mark.device
def test_patience_ends_for_all_that_are_late_together():
    start = time.perf_counter()
    found = run(FIRST, *({"system": name, "trouble": "hangs"} for name in "abc"), patience=8.0)
    assert time.perf_counter() - start < 3 * 8.0
    assert [found[name]["error"] for name in "abc"] == [f"{name} gave no answer within 8 s." for name in "abc"]

# SPDX-License-Identifier: Apache-2.0
"""Several systems on one model: what each answers, and what becomes of one that fails."""

import os

import pytest

from bench_systems import largest_difference, prepare
from smartmem_tvm.bench.measure import Method, measure
from smartmem_tvm.bench.turns import Effort

FIRST = {"system": "ours", "brings_inputs": True, "adds": 0.5}
REFERENCE = {"system": "reference"}


def run(*requests, together=True, patience=30.0):
    effort = Effort(budget=0.05, least=2, most=4)
    return measure(requests, Method(prepare, largest_difference, "reference", effort, together, patience))


@pytest.mark.parametrize("together", [True, False])
def test_every_system_has_a_process_figures_and_an_error(together):
    found = run(FIRST, {"system": "slow", "seconds": 0.04, "adds": 2}, REFERENCE, together=together)
    assert list(found) == ["ours", "slow", "reference"]
    assert len({facts["process"] for facts in found.values()} | {os.getpid()}) == 4
    assert [found[name].get("relative_error") for name in found] == [0.5, 2.0, None]
    assert all(facts["kernels"] == 2 for facts in found.values()), "what a run tells replaces the facts before it"
    assert found["slow"]["latency_ms"]["median"] >= 40 > found["ours"]["latency_ms"]["median"]
    assert found["slow"]["latency_ms"]["runs"] == 2 and found["ours"]["latency_ms"]["runs"] == 4


def test_peaks_of_compiling_and_running_are_apart():
    found = run({**FIRST, "megabytes": 200}, REFERENCE)
    assert found["ours"]["peak_mb"]["compile"] > found["reference"]["peak_mb"]["compile"] + 150
    assert found["ours"]["peak_mb"]["run"] < found["ours"]["peak_mb"]["compile"] - 150


def test_one_that_is_only_counted_does_not_run():
    found = run(FIRST, {"system": "counted", "count_only": True})
    assert found["counted"]["kernels"] == 1 and "latency_ms" not in found["counted"]


TROUBLE = {
    "refuses": "Tensor 'x' is odd; give an even one.",
    "breaks": "bad failed with ValueError (broken).",
    "dies": "bad was ended by signal SIGKILL, as happens when memory runs out.",
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_system_that_fails_leaves_a_sentence_and_the_others(trouble):
    found = run(FIRST, {"system": "bad", "trouble": trouble}, REFERENCE)
    assert found["bad"] == {"error": TROUBLE[trouble]}
    assert found["ours"]["relative_error"] == 0.5
    assert found["reference"]["latency_ms"]["runs"] >= 2


@pytest.mark.parametrize("together", [True, False])
def test_without_the_first_there_is_nothing_to_measure(together):
    found = run({**FIRST, "trouble": "refuses"}, REFERENCE, together=together)
    assert found == {"ours": {"error": TROUBLE["refuses"]}}


def test_patience_ends():
    found = run(FIRST, {"system": "bad", "trouble": "hangs"}, patience=8.0)
    assert found["bad"] == {"error": "bad gave no answer within 8 s."}

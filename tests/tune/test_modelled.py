# SPDX-License-Identifier: Apache-2.0
"""Prices beside times: which candidates are measured first, and what becomes of their order."""

import numpy as np
import pytest
from tvm.s_tir import meta_schedule as ms

from fake_tuning import TARGET, Builder, campaign, right, task
from smartmem_tvm.tune.campaign import TuningEffort
from smartmem_tvm.tune.modelled import rank_correlation
from smartmem_tvm.tune.records import Records, circumstances, lines_of, record_key, workload_key
from smartmem_tvm.tune.strategy import seconds_of
from smartmem_tvm.tune.trace import schedule_of

JUDGE = {"date": "", "command": "", "device": "adreno-740", "judge": "Mesa 1"}
TASK = task("matmul")
KEY = workload_key(TASK.mod)


def price(path, *seconds, run=JUDGE, wrong=(), seed=0):
    """Record candidates with these prices, drawn at random; return their keys."""
    records = Records(path, circumstances(TARGET, 2), run)
    random, kernel, keys = np.random.default_rng(seed), TASK.kernel, []
    while len(keys) < len(seconds):
        trace = schedule_of(TASK.mod, kernel.space.random(random), kernel.space).trace
        arguments = ms.arg_info.ArgInfo.from_entry_func(TASK.mod)
        times = [seconds[len(keys)]]
        record = ms.database.TuningRecord(trace, records.commit_workload(TASK.mod), times, TARGET, arguments)
        if record_key(record) not in keys:
            records.commit_tuning_record(record)
            keys.append(record_key(record))
            if len(keys) - 1 in wrong:
                records.commit_wrong(record, "differs")
    return keys


@pytest.mark.parametrize(
    ("pairs", "correlation"),
    [
        ([(1, 10), (2, 20), (3, 30)], 1.0),
        ([(1, 30), (2, 20), (3, 10)], -1.0),
        ([(1, 10), (2, 30), (3, 20), (4, 40)], 0.8),  # 1 - 6 * 2 / (4 * 15)
        ([(1, 1), (1, 2), (2, 3)], 3 / np.sqrt(12)),  # the first two share rank 1.5
        ([(1, 1)], None),
        ([(1, 5), (2, 5)], None),
    ],
)
def test_rank_correlation(pairs, correlation):
    found = rank_correlation(pairs)
    assert found == (None if correlation is None else pytest.approx(correlation))


def test_prices_and_times_of_one_file_are_kept_apart(tmp_path):
    path = tmp_path / "records.jsonl"
    keys = price(path, 3e-6, 1e-6, 2e-6, 1e9)  # the last one failed
    timed = Records(path, circumstances(TARGET, 2), {"date": "", "command": "", "device": "phone"})
    assert timed.of(KEY) == [] and timed.judge is None and timed.order_change(KEY) is None
    first = timed.first_generation(KEY, 2, ours=True)
    assert [record_key(each) for each in first] == [keys[1], keys[2]]
    assert timed.first_generation(KEY, 9, ours=False) == []
    again = Records(path, circumstances(TARGET, 2), JUDGE)
    assert len(again.of(KEY)) == 4 and again.first_generation(KEY, 9, ours=True) == []
    other = Records(path, circumstances(TARGET, 2), {**JUDGE, "judge": "Mesa 2"})
    assert other.of(KEY) == []  # another compiler's prices are not compared


def test_what_was_measured_or_is_wrong_is_not_measured_first_and_the_order_is_told(tmp_path):
    path, measured = tmp_path / "records.jsonl", {"date": "", "command": "", "device": "phone"}
    keys = price(path, 1e-6, 2e-6, 3e-6, 4e-6)
    assert price(path, 9e-6, 5e-6, 7e-6, run=measured, wrong=(2,)) == keys[:3]
    records = Records(path, circumstances(TARGET, 2), measured)
    assert [record_key(each) for each in records.first_generation(KEY, 9, ours=True)] == keys[3:]
    # A wrong candidate counts as failed. Of the two others the modelled best is the measured second.
    change = records.order_change(KEY)
    assert change.as_dict() == {"compared": 2, "correlation": pytest.approx(-1.0), "best_is": 2}


def test_a_campaign_measures_the_modelled_best_first_and_then_goes_on(tmp_path):
    price(tmp_path / "records.jsonl", *(1e-6 * n for n in range(9, 0, -1)))
    best = Records(tmp_path / "records.jsonl", circumstances(TARGET, 2), {"date": "", "command": ""})
    first = [record_key(each) for each in best.first_generation(KEY, 4, ours=True)]
    run = campaign(tmp_path)
    run.run()
    tried = [each["record"] for each in lines_of(tmp_path / "records.jsonl") if "trace" in each][9:]
    assert tried[:4] == first and len(tried) == len(set(tried)) == 12
    (kernel,) = run.kernels
    assert len(kernel.times) == 12 and run.records.order_change(KEY).compared >= 4
    assert kernel.winner["seconds"] == min(seconds_of(each) for each in run.records.of(KEY))


def test_trials_for_nothing_but_modelled_candidates_are_enough(tmp_path):
    price(tmp_path / "records.jsonl", *(1e-6 * n for n in range(1, 6)))
    run = campaign(tmp_path, effort=TuningEffort(trials=3, worth=1e-9, batch=4, minutes=float("inf")))
    run.run()
    assert len(run.kernels[0].times) == 3 and run.kernels[0].state == "all trials done"


def test_modelled_candidates_that_cannot_be_built_do_not_end_the_search(tmp_path):
    price(tmp_path / "records.jsonl", 1e-6, 2e-6)
    run = campaign(tmp_path, judge=right)
    builder = run.tools.builder
    assert isinstance(builder, Builder)
    builder.error = "the compiler crashed"
    run.run()
    assert run.kernels[0].times == [None] * 12

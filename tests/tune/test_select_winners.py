# SPDX-License-Identifier: Apache-2.0
"""Which winners of a file count where, and what is said of the others."""

import pytest
from tvm.s_tir import meta_schedule as ms

from smartmem_tvm.target import parse_target
from smartmem_tvm.tune import select_winners
from smartmem_tvm.tune.records import Records, circumstances, lines_of, record_key, workload_key
from smartmem_tvm.tune.select_winners import choose
from smartmem_tvm.tune.strategy import best_record
from smartmem_tvm.tune.trace import genome_of, schedule_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES

TARGET = parse_target("llvm")
WHERE = circumstances(TARGET, 2)
MOD = workload(with_constants(CASES["matmul"].func(), ()))
KERNEL = TunableKernel.of(MOD["main"], TARGET)
KEY = workload_key(MOD)
OTHER_FEATURES = {**WHERE, "target": {**WHERE["target"], "mattr": ["+other"]}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


def found(path, unroll, where=WHERE, seconds=1.0, untuned=2.0, **run):
    """A run that finds one winner."""
    records = Records(path, where, {"date": "", "command": "", "device": "this", **run})
    trace = schedule_of(MOD, {**KERNEL.seed, "matmul.unroll": unroll}, KERNEL.space).trace
    arguments = ms.arg_info.ArgInfo.from_entry_func(MOD)
    record = ms.database.TuningRecord(trace, records.commit_workload(MOD), [1.0], TARGET, arguments)
    records.commit_tuning_record(record)
    records.commit_winner(record, seconds, untuned)
    return records, record


def unroll_of(chosen) -> int:
    return genome_of(best_record(chosen.database, MOD, TARGET).trace)["matmul.unroll"]


@pytest.mark.parametrize(
    ("where", "run", "reason"),
    [
        ({**WHERE, "tvm": "0.1"}, {}, "found with TVM 0.1, and this is"),
        ({**WHERE, "schedules": -1}, {}, "found for version -1 of the schedules, and these are version"),
        (OTHER_FEATURES, {}, "with other limits"),
        (circumstances(parse_target("adreno-740"), 2), {}, "found for target opencl adreno-740 with textures"),
        (WHERE, {"device": "that"}, "found on that, and this is this"),
    ],
)
def test_what_was_found_elsewhere_does_not_count_and_the_reason_is_said(path, where, run, reason):
    found(path, 2, where, **run)
    chosen = choose(lines_of(path), WHERE, "this")
    assert reason in chosen.left_out[KEY] and not chosen.winners and not len(chosen.database)
    found(path, 4)
    chosen = choose(lines_of(path), WHERE, "this")
    assert chosen.left_out == {} and unroll_of(chosen) == 4


def test_any_device_of_a_target_will_do_where_none_is_named_and_so_will_another_driver(path):
    found(path, 2, device="that", driver="2")
    assert choose(lines_of(path), WHERE).winners[KEY].run["driver"] == "2"


def test_the_same_cores_count_more_than_the_last_run(path):
    other = {**WHERE, "target": {**WHERE["target"], "num-cores": 7}}
    found(path, 2, other)
    assert unroll_of(choose(lines_of(path), WHERE)) == 2
    found(path, 1)
    found(path, 4)
    found(path, 2, other)
    assert unroll_of(choose(lines_of(path), WHERE)) == 4


def test_a_winner_that_is_no_faster_or_wrong_or_lost_does_not_count(path):
    found(path, 2, seconds=1.0, untuned=1.0)
    assert choose(lines_of(path), WHERE).left_out == {KEY: "no faster than the untuned kernel"}
    records, record = found(path, 4)
    winner = choose(lines_of(path), WHERE).winners[KEY]
    assert (winner.gain, winner.record) == (2.0, record_key(record))
    lines = lines_of(path)
    assert choose([each for each in lines if "trace" not in each], WHERE).left_out == {KEY: select_winners.NO_RECORD}
    records.commit_wrong(record, "differs")
    assert choose(lines_of(path), WHERE).left_out[KEY] == "no faster than the untuned kernel"
    assert choose(lines_of(path), WHERE).winners == {}


def test_a_measured_winner_counts_before_a_modelled_one_whichever_is_the_last(path):
    found(path, 2, seconds=1.0, untuned=9.0, judge="Mesa 1")
    assert choose(lines_of(path), WHERE).winners[KEY].run["judge"] == "Mesa 1"
    found(path, 4, seconds=1.0, untuned=1.5)
    found(path, 1, seconds=1.0, untuned=9.0, judge="Mesa 2")
    chosen = choose(lines_of(path), WHERE)
    assert unroll_of(chosen) == 4 and chosen.winners[KEY].gain == 1.5 and "judge" not in chosen.winners[KEY].run


def test_a_modelled_winner_does_not_count_where_measurements_found_nothing_faster(path):
    found(path, 4, seconds=1.0, untuned=1.0)
    found(path, 1, seconds=1.0, untuned=9.0, judge="Mesa 1")
    assert choose(lines_of(path), WHERE).left_out == {KEY: "no faster than the untuned kernel"}


def test_a_modelled_winner_that_was_wrong_or_failed_on_the_device_does_not_count(path):
    _, record = found(path, 2, untuned=9.0, judge="Mesa 1")
    failed = ms.database.TuningRecord(record.trace, record.workload, [1e10], TARGET, record.args_info)
    device = Records(path, WHERE, {"date": "", "command": "", "device": "this"})
    device.commit_workload(MOD)
    device.commit_tuning_record(failed)
    found(path, 2, untuned=9.0, judge="Mesa 2")  # a later line of the same candidate
    assert choose(lines_of(path), WHERE).left_out == {KEY: "it failed when it was measured"}
    device.commit_wrong(record, "differs")
    assert choose(lines_of(path), WHERE).left_out == {KEY: "its outputs were wrong"}

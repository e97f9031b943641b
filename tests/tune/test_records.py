# SPDX-License-Identifier: Apache-2.0
"""A file of records as MetaSchedule's database."""

import json

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from smartmem_tvm.errors import UserError
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.json_lines import rewrite
from smartmem_tvm.tune.metaschedule import context, cost_model
from smartmem_tvm.tune.record_lines import prune
from smartmem_tvm.tune.records import Records, circumstances, export, lines_of, record_key, workload_key
from smartmem_tvm.tune.select_winners import choose
from smartmem_tvm.tune.strategy import best_record, seconds_of
from smartmem_tvm.tune.trace import genome_of, schedule_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES

TARGET = parse_target('{"kind": "llvm", "mcpu": "haswell", "num-cores": 2}')  # whose tiles these tests name
WHERE = circumstances(TARGET, 2)
RUN = {"date": "today", "command": "smartmem tune", "device": "a CPU", "driver": "", "strategy": "genetic"}
MOD = workload(with_constants(CASES["matmul with a weight"].func(), (1,)))
KERNEL = TunableKernel.of(MOD["main"], TARGET)


def commit(records, seconds, **genes):
    trace = schedule_of(MOD, {**KERNEL.seed, **genes}, KERNEL.space).trace
    arguments = ms.arg_info.ArgInfo.from_entry_func(MOD)
    record = ms.database.TuningRecord(trace, records.commit_workload(MOD), seconds, TARGET, arguments)
    records.commit_tuning_record(record)
    return record


@pytest.fixture
def path(tmp_path):
    return tmp_path / "logs" / "records.jsonl"


def test_what_one_run_writes_the_next_one_finds(path):
    first = Records(path, WHERE, RUN)
    fast = commit(first, [2e-3, 1e-3, 3e-3], **{"matmul.width": 16})
    commit(first, [1e10], **{"matmul.width": 24})
    first.commit_winner(fast, 1e-3, 2e-3)
    second = Records(path, WHERE, RUN)
    known = second.get_all_tuning_records()
    assert [seconds_of(each) for each in known] == [2e-3, None]
    assert genome_of(known[0].trace)["matmul.width"] == 16 and record_key(known[0]) == record_key(fast)
    assert second.winners[workload_key(MOD)]["winner"] == record_key(fast)
    assert seconds_of(best_record(second, MOD, TARGET)) == 2e-3
    assert len(Records(path, circumstances(TARGET, 4), RUN)) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [RUN.items() <= line.items() for line in lines] == [True, False, False, False, False]


def winners(path, where):
    """The database that models are compiled with."""
    return choose(lines_of(path), where).database


def test_nothing_is_written_before_there_is_something_to_say(path):
    Records(path, WHERE, RUN).commit_workload(MOD)
    assert not path.exists()


def test_only_right_and_faster_winners_are_what_models_are_compiled_with(path):
    records = Records(path, WHERE, RUN)
    good = commit(records, [1e-3], **{"matmul.width": 16})
    records.commit_winner(good, 2e-3, 2e-3)
    assert len(winners(path, WHERE)) == 0
    records.commit_winner(good, 1e-3, 2e-3)
    assert len(winners(path, WHERE)) == 1 and not len(winners(path, circumstances(TARGET, 7)))
    assert len(winners(path, circumstances(parse_target("cuda"), 2))) == 0
    records.commit_wrong(good, "differs")
    assert len(winners(path, WHERE)) == 0 and records.winners == {}
    assert [seconds_of(each) for each in Records(path, WHERE, RUN).get_all_tuning_records()] == [None]


def test_a_torn_line_is_removed_and_reported_by_who_writes_and_skipped_by_who_reads(path, caplog):
    records = Records(path, WHERE, RUN)
    good = commit(records, [1e-3])
    records.commit_winner(good, 1e-3, 2e-3)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"record": "a0')
    assert len(winners(path, WHERE)) == 1 and "was not written to its end and is skipped" in caplog.text
    assert path.read_bytes() != whole
    assert len(Records(path, WHERE, RUN)) == 1 and "the 14 bytes of it were removed" in caplog.text
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "damage", [[["TENSOR", "float32", [None]]], [["TENSOR", "float32", None]], [["TENSOR"]], [None]]
)
def test_a_record_whose_arguments_tvm_would_crash_on_is_skipped(path, caplog, damage):
    commit(Records(path, WHERE, RUN), [1e-3])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**line, "arguments": damage} if "arguments" in line else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(Records(path, WHERE, RUN)) == 0
    assert "its arguments are none of MetaSchedule's" in caplog.text


def test_two_runs_may_add_to_one_file(path):
    one, other = Records(path, WHERE, RUN), Records(path, WHERE, RUN)
    for width, records in ((8, one), (16, other), (24, one), (32, other)):
        commit(records, [width * 1e-3], **{"matmul.width": width})
    found = Records(path, WHERE, RUN).get_all_tuning_records()
    assert [genome_of(each.trace)["matmul.width"] for each in found] == [8, 16, 24, 32]


@pytest.mark.parametrize("replaced", ["pruned", "another branch"])
def test_a_run_goes_on_when_its_file_is_replaced(path, replaced):
    records = Records(path, WHERE, RUN)
    commit(records, [])
    if replaced == "pruned":
        rewrite(path, lambda lines: prune(lines, 1))
    else:
        path.unlink()
        path.write_text('{"other": 1}\n')
    commit(records, [1e-3], **{"matmul.width": 16})
    commit(records, [2e-3], **{"matmul.width": 24})
    found = Records(path, WHERE, RUN).get_all_tuning_records()
    assert [genome_of(each.trace)["matmul.width"] for each in found] == [16, 24]
    assert path.read_text().count('"command"') == path.read_text().count('"module"') == 1


def test_a_record_whose_kernel_is_gone_does_not_count(path):
    commit(Records(path, WHERE, RUN), [1e-3])
    rewrite(path, lambda lines: [each for each in lines if "module" not in each])
    assert len(Records(path, WHERE, RUN)) == 0


def test_schedules_of_tvm_come_back_with_their_index_maps(path):
    task = context(MOD, TARGET, "replay", 0)
    task.pre_tuning(8, 8, task.generate_design_space(), ms.database.MemoryDatabase(), cost_model("replay"))
    records, written = Records(path, WHERE, RUN), []
    for candidate in task.generate_measure_candidates():
        workload = records.commit_workload(MOD)
        fields = (candidate.sch.trace, workload, [1e-3], TARGET, candidate.args_info)
        records.commit_tuning_record(ms.database.TuningRecord(*fields))
        written.append(candidate.sch.mod)
    assert "TransformLayout" in path.read_text()
    for record, mod in zip(Records(path, WHERE, RUN).get_all_tuning_records(), written, strict=True):
        again = tvm.s_tir.Schedule(record.workload.mod)
        record.trace.apply_to_schedule(again, remove_postproc=False)
        tvm.ir.assert_structural_equal(again.mod, mod)


def test_metaschedule_reads_what_is_exported(path, tmp_path):
    commit(Records(path, WHERE, RUN), [1e-3])
    commit(Records(path, circumstances(TARGET, 4), RUN), [2e-3], **{"matmul.width": 8})
    assert export(path, tmp_path / "exported") == 2
    found = ms.database.JSONDatabase(work_dir=str(tmp_path / "exported")).get_all_tuning_records()
    assert sorted(map(seconds_of, found)) == [1e-3, 2e-3]
    with pytest.raises(UserError, match="holds a database"):
        export(path, tmp_path / "exported")

# SPDX-License-Identifier: Apache-2.0
"""Campaigns in which candidates are wrong, disks full, and machines or searches fail."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx

from fake_tuning import EFFORT, Verdict, campaign, right
from full_disk import no_room_beyond
from smartmem_tvm.deploy.judge import judge
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.faults import MachineFailed
from smartmem_tvm.schedule.core.decisions import DECISIONS
from smartmem_tvm.schedule.cpu.rows import Rows
from smartmem_tvm.tune import campaign as campaign_module
from smartmem_tvm.tune import json_lines, record_lines
from smartmem_tvm.tune.campaign import TuningEffort
from smartmem_tvm.tune.records import record_key
from smartmem_tvm.tune.trace import genome_of


def test_wrong_candidates_are_quarantined_and_the_next_ones_judged(tmp_path):
    asked = []

    def first_ones_wrong(mod, target, records):
        asked.append([record_key(each) for each in records])
        if len(asked) == 1:
            return [Verdict(None, None, "output 0 differs") for _ in records]
        return right(mod, target, records)

    tuned = campaign(tmp_path, judge=first_ones_wrong)
    tuned.run()
    (kernel,) = tuned.kernels
    assert kernel.wrong == 3 and tuned.records.wrong == set(asked[0])
    assert kernel.winner["winner"] in asked[1] and not set(asked[0]) & set(asked[1])
    again = campaign(tmp_path)
    assert again.kernels[0].times.count(None) == 3  # known as failures now


@pytest.mark.device
def test_what_a_rule_gets_wrong_for_some_decisions_does_not_win(tmp_path, monkeypatch):
    apply = Rows.apply

    def wrong_in_eights(rule, func, target):
        """The rule, but for rows of eight lanes one number is none."""
        if (func.attrs or {}).get(DECISIONS, {}).get("rows.vectors") == 8:
            output = func.params[-1]
            spoil = (tirx.BufferStore, lambda store: _spoiled(store) if store.buffer.same_as(output) else store)
            func = tirx.PrimFunc(func.params, tvm_ffi.structural_map(func.body, spoil)).with_attrs(dict(func.attrs))
        return apply(rule, func, target)

    monkeypatch.setattr(Rows, "apply", wrong_in_eights)
    monkeypatch.setattr(campaign_module, "_FINALISTS", 24)
    tuned = campaign(tmp_path, ("layer norm",), judge=judge, effort=TuningEffort(24, 1e-9, 8, float("inf")))
    tuned.run()
    (kernel,) = tuned.kernels
    records = {record_key(each): each for each in tuned.records.get_all_tuning_records()}
    spoiled = {key for key, each in records.items() if genome_of(each.trace)["rows.vectors"] == 8}
    lines = [json.loads(line) for line in tuned.records.path.read_text().splitlines()]
    errors = {line["wrong"]: line["error"] for line in lines if "wrong" in line}
    assert len(records) == 24 and len(spoiled) == 6
    assert kernel.wrong == 6 and set(errors) == spoiled
    assert set(errors.values()) == {"output 0: 1 of 1650 elements are not finite"}
    assert kernel.winner is not None and kernel.winner["winner"] not in spoiled


def _spoiled(store):
    first = tirx.all(*(index == 0 for index in store.indices))
    return tirx.BufferStore(store.buffer, tirx.Select(first, tirx.const(np.nan, "float32"), store.value), store.indices)


def test_where_all_are_wrong_nothing_wins(tmp_path):
    tuned = campaign(tmp_path, judge=lambda mod, target, records: [Verdict(None, None, "differs") for _ in records])
    tuned.run()
    assert tuned.kernels[0].winner is None and tuned.kernels[0].gain == 1 and tuned.kernels[0].wrong == 12


def test_a_machine_that_fails_at_everything_ends_it(tmp_path):
    tuned = campaign(tmp_path, error="OSError: [Errno 28] No space left on device")
    with pytest.raises(UserError, match=r"no candidate could be measured .*No space left on device"):
        tuned.run()
    assert tuned.kernels[0].machine_failed == 8 and tuned.kernels[0].times == [] and not tuned.records.path.exists()


def test_a_machine_that_fails_at_all_of_two_short_searches_ends_it(tmp_path):
    effort = replace(EFFORT, trials=4)
    tuned = campaign(tmp_path, ("matmul", "layer norm"), effort=effort, error="OSError: No space left on device")
    with pytest.raises(UserError, match="no candidate could be measured"):
        tuned.run()


def test_a_machine_that_fails_at_the_only_batch_ends_it(tmp_path):
    tuned = campaign(tmp_path, effort=replace(EFFORT, trials=4), error="OSError: No space left on device")
    with pytest.raises(UserError, match="no candidate could be measured"):
        tuned.run()


def test_a_full_disk_ends_it_and_the_next_run_goes_on(tmp_path, monkeypatch):
    tuned = campaign(tmp_path)
    path, slept = tuned.records.path, []
    monkeypatch.setattr(campaign_module.time, "sleep", slept.append)
    with no_room_beyond(path, 19_000), pytest.raises(UserError) as error:
        tuned.run()
    said = str(error.value)
    assert f"{path.name} in folder {tmp_path} cannot be written to (File too large)" in said
    assert f"all that was measured but the last results (lines: {tuned.records.pending})" in said
    assert "make room and run the same command again" in said and said.count(". ") == 0
    assert not slept and list(tmp_path.rglob("*.jsonl*")) == [path]  # nothing is waited for, and nothing put elsewhere
    (lines, damaged), check = json_lines.read(path), record_lines.check(path)
    assert not damaged and check.problems == []
    kept = sum("record" in line for line in lines)
    assert kept == check.counts["candidates"] and 0 < tuned.kernels[0].tried - kept <= tuned.records.pending
    again = campaign(tmp_path, run=2)
    assert len(again.kernels[0].times) == kept
    again.run()
    assert len(again.kernels[0].times) == 12 and again.kernels[0].winner is not None
    assert record_lines.check(path).problems == []


def test_where_there_is_no_room_for_anything_nothing_is_begun(tmp_path):
    tuned = campaign(tmp_path)
    with no_room_beyond(tmp_path / "none", 10), pytest.raises(UserError, match=r"cannot be written to \(File too"):
        tuned.run()
    assert not json_lines.read(tuned.records.path)[0] and record_lines.check(tuned.records.path).problems == []


def test_a_verdict_that_finds_no_room_is_made_by_the_next_run(tmp_path):
    limits = []

    def fills_the_disk(mod, target, records):
        limits.append(no_room_beyond(tmp_path / "records.jsonl", 10))
        limits[-1].__enter__()
        return right(mod, target, records)

    tuned = campaign(tmp_path, judge=fills_the_disk)
    try:
        with pytest.raises(UserError, match=r"the last results \(lines: 1\)"):
            tuned.run()
    finally:
        limits[-1].__exit__(None, None, None)
    again = campaign(tmp_path, run=2)
    again.run()
    assert again.kernels[0].tried == 0 and again.kernels[0].winner is not None


def test_a_kernel_that_the_machine_cannot_judge_is_judged_by_the_next_run(tmp_path, caplog):
    def judge_without_room(mod, target, records):
        raise MachineFailed("No space left on device")

    tuned = campaign(tmp_path, judge=judge_without_room)
    tuned.run()
    assert tuned.kernels[0].state == "not judged" and tuned.kernels[0].winner is None and not tuned.records.wrong
    assert "could not be judged (No space left on device); run the command again" in caplog.text
    again = campaign(tmp_path, run=2)
    again.run()
    assert again.kernels[0].tried == 0 and again.kernels[0].winner is not None


def test_what_was_tried_after_the_last_verdict_is_judged_by_the_next_run(tmp_path):
    campaign(tmp_path, effort=TuningEffort(8, 1e-9, 4, float("inf"))).run()
    killed = campaign(tmp_path, run=2, judge=None)  # whatever ends it before its verdicts
    with pytest.raises(TypeError):
        killed.run()
    judged = []

    def count(mod, target, records):
        judged.append(len(records))
        return right(mod, target, records)

    again = campaign(tmp_path, run=3, judge=count)
    again.run()
    assert again.kernels[0].tried == 0 and len(judged) == 1
    campaign(tmp_path, run=4, judge=count).run()
    assert len(judged) == 1


def test_candidates_that_fail_are_no_fault_of_the_machine(tmp_path):
    tuned = campaign(tmp_path, error="the compiler crashed")
    tuned.run()
    assert tuned.kernels[0].times == [None] * 12 and tuned.kernels[0].winner is None


def test_a_search_that_raises_ends_for_its_kernel_only(tmp_path, monkeypatch, caplog):
    step = campaign_module.SearchSession.step

    def failing(session):
        if len(session.done) == 4 and session.context.task_name == "matmul":
            raise ValueError("a bug\nin TVM")
        return step(session)

    monkeypatch.setattr(campaign_module.SearchSession, "step", failing)
    tuned = campaign(tmp_path, ("matmul", "layer norm"))
    tuned.run()
    found = {kernel.name: (kernel.state, kernel.tried, kernel.winner is not None) for kernel in tuned.kernels}
    assert found == {"matmul": ("search failed", 4, True), "layer norm": ("all trials done", 12, True)}
    assert "Kernel matmul is not tuned further, as genetic raised in TVM." in caplog.text
    monkeypatch.setattr(campaign_module.SearchSession, "step", lambda session: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # where nothing works
        campaign(tmp_path / "other").run()

# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is, when it is enough, and what counts, with builds that are numbers."""

import pytest

from fake_tuning import Verdict, campaign
from smartmem_tvm.errors import UserError
from smartmem_tvm.tune import campaign as campaign_module
from smartmem_tvm.tune.campaign import TuningEffort


def test_all_trials_are_done_and_the_fastest_right_candidate_wins(tmp_path):
    tuned = campaign(tmp_path, ("matmul", "layer norm"))
    tuned.run()
    for kernel in tuned.kernels:
        assert len(kernel.times) == kernel.tried == 12 and kernel.state == "all trials done"
        assert kernel.winner["seconds"] == kernel.best and kernel.gain == pytest.approx(1e-3 / kernel.best)


def test_a_second_run_has_nothing_to_do_and_one_with_more_trials_goes_on(tmp_path):
    campaign(tmp_path).run()
    judged = []
    again = campaign(tmp_path, judge=lambda *asked: judged.append(asked))
    again.run()
    assert again.kernels[0].tried == 0 and len(again.kernels[0].times) == 12 and not judged
    assert again.kernels[0].gain > 1
    more = campaign(tmp_path, effort=TuningEffort(20, 1e-9, 4, float("inf")))
    more.run()
    assert more.kernels[0].tried == 8 and len(more.kernels[0].times) == 20


def test_an_interrupted_run_keeps_and_judges_what_it_has(tmp_path):
    first = campaign(tmp_path, ("matmul", "layer norm"))
    turns = []

    def stop(state):
        turns.append(state.current.name)
        state.stopping = True

    first.run(stop)
    assert [kernel.tried for kernel in first.kernels] == [4, 0]
    assert [kernel.state for kernel in first.kernels] == ["stopped", "stopped"] and first.kernels[0].winner
    second = campaign(tmp_path, ("matmul", "layer norm"))
    assert [len(kernel.times) for kernel in second.kernels] == [4, 0]
    second.run()
    assert [kernel.tried for kernel in second.kernels] == [8, 12]


def test_a_winner_that_is_not_faster_gains_nothing(tmp_path):
    tuned = campaign(tmp_path, judge=lambda mod, target, records: [Verdict(2e-3, 1e-3) for _ in records])
    tuned.run()
    assert tuned.kernels[0].gain == 1


def test_when_the_time_is_up_nothing_begins(tmp_path):
    tuned = campaign(tmp_path, effort=TuningEffort(12, 1e-9, 4, 0.0))
    tuned.run()
    assert tuned.kernels[0].tried == 0 and tuned.kernels[0].state == "time is up"


def test_the_search_leaves_time_for_the_verdicts(tmp_path):
    tuned = campaign(tmp_path, ("matmul", "layer norm"), effort=TuningEffort(12, 1e-9, 4, 10.0))
    tuned._verdict_seconds = 240.0
    turns = []

    def jump(state):
        turns.append(state.current.name)
        state.deadline -= 150

    tuned.run(jump)
    assert [kernel.tried for kernel in tuned.kernels] == [4, 4] and len(turns) == 4  # two of them for verdicts
    assert all(kernel.state == "time is up" and kernel.winner is not None for kernel in tuned.kernels)


def test_the_next_turn_is_of_the_kernel_with_the_most_to_gain(tmp_path):
    tuned = campaign(tmp_path, ("matmul", "layer norm", "transpose"), untuned=[1e-4, 5e-4, 4e-4])
    assert [kernel.name for kernel in tuned.kernels] == ["layer norm", "transpose", "matmul"]
    assert [kernel.share for kernel in tuned.kernels] == pytest.approx([0.5, 0.4, 0.1])
    turns = []
    tuned.run(lambda state: turns.append(state.current.name))
    assert turns[:2] == ["layer norm", "transpose"]


def test_a_kernel_that_promises_nothing_is_finished_early(tmp_path):
    tuned = campaign(tmp_path, effort=TuningEffort(1000, 0.02, 4, float("inf")))
    tuned.run()
    (kernel,) = tuned.kernels
    assert kernel.state == "no more gain" and kernel.tried < 200 and kernel.winner is not None


def test_a_kernel_that_the_strategy_cannot_tune_is_named_and_the_others_are_tuned(tmp_path, monkeypatch, caplog):
    session = campaign_module.SearchSession

    def refusing(mod, target, strategy, tools, trials, batch, seed, name, first):
        if name == "matmul":
            raise UserError("Kernel matmul cannot be tuned by strategy genetic.")
        return session(mod, target, strategy, tools, trials, batch, seed, name, first)

    monkeypatch.setattr(campaign_module, "SearchSession", refusing)
    tuned = campaign(tmp_path, ("matmul", "layer norm"))
    tuned.run()
    assert {kernel.name: (kernel.state, kernel.tried) for kernel in tuned.kernels} == {
        "matmul": ("not by genetic", 0),
        "layer norm": ("all trials done", 12),
    }
    assert "Kernel matmul cannot be tuned" in caplog.text

# SPDX-License-Identifier: Apache-2.0
"""What is shown while kernels are tuned."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from smartmem_tvm.cli.tune_table import gain_so_far, headline, live_table, show_progress, time_left
from smartmem_tvm.tune.kernel_run import kernel_runs
from smartmem_tvm.tune.tasks import Task


@pytest.fixture
def campaign():
    """Two kernels: one of two models, tuned halfway in 20 s; one that nothing was tried of."""
    tasks = [Task(("a/one", "b/one"), None, None, 2, {"a": 1, "b": 1}), Task(("b/two",), None, None, 1, {"b": 1})]
    one, two = kernel_runs(tasks, [3e-3, 1e-3])
    one.times, one.tried, one.spent = [None, 2e-3, 4e-3, 2.5e-3], 4, 20.0
    effort = SimpleNamespace(trials=8)
    return SimpleNamespace(kernels=[one, two], effort=effort, current=one, deadline=time.monotonic() + 1000)


def text_of(table):
    console = Console(file=io.StringIO(), width=140)
    console.print(table)
    return console.file.getvalue()


def test_the_table_tells_what_there_is_to_know(campaign):
    text = text_of(live_table(campaign))
    one, two = (
        next(line.split() for line in text.splitlines() if name in line.split()[:1]) for name in ("a/one", "b/two")
    )
    assert one == ["a/one", "a,", "b", "87.5%", "4/8", "3000.0", "2000.0", "1.50x", "0:20", "now"]
    assert two == ["b/two", "b", "12.5%", "0/8", "1000.0", "-", "1.00x", "0:40"]
    assert "0 of 2 kernels done, 4 trials, 1.41x so far, at most 0:59 left; now a/one" in text.replace("1:00", "0:59")


def test_time_is_left_until_the_trials_are_done_or_the_time_is_up(campaign):
    assert time_left(campaign) == pytest.approx(20 + 40)
    campaign.deadline = time.monotonic() + 30
    assert time_left(campaign) == pytest.approx(30, abs=1)
    campaign.deadline = float("inf")
    campaign.kernels[0].state = "no more gain"
    assert time_left(campaign) == pytest.approx(40)
    campaign.kernels[0].tried = 0
    assert time_left(campaign) == float("inf") and "left" not in headline(campaign)


def test_a_judged_gain_counts_more_than_a_measured_one(campaign):
    one = campaign.kernels[0]
    assert gain_so_far(one) == pytest.approx(1.5)
    one.state, one.winner = "no more gain", {"untuned": 3.0, "seconds": 2.5}
    assert gain_so_far(one) == pytest.approx(1.2)


def test_without_a_terminal_there_is_a_line_for_each_kernel_that_is_done(campaign, capsys):
    with show_progress(campaign) as show:
        show(campaign)
        campaign.kernels[0].state = "no more gain"
        show(campaign)
        show(campaign)
    assert capsys.readouterr().err.startswith("smartmem: 1 of 2 kernels done, 4 trials, 1.00x so far")


def test_kernels_of_small_shares_are_counted(campaign):
    campaign.kernels += [campaign.kernels[1]] * 30
    assert "and 12 more" in text_of(live_table(campaign))

# SPDX-License-Identifier: Apache-2.0
"""What is shown while kernels are tuned."""

import io

import pytest
from rich.console import Console

from half_tuned import half_tuned
from smartmem_tvm.cli.tune_table import live_table, order_lines, show_progress


@pytest.fixture
def campaign():
    return half_tuned()


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


def test_what_became_of_the_order_of_modelled_candidates_is_said():
    def kernel(name, **order):
        return {"names": [name], "order": order or None}

    assert list(order_lines([kernel("a")])) == []
    told = list(
        order_lines(
            [
                kernel("a"),
                kernel("b", compared=8, correlation=0.5, best_is=3),
                kernel("c", compared=1, correlation=None, best_is=1),
            ]
        )
    )
    assert told == [
        "Modelled candidates of 2 kernels were measured: the modelled best is the measured best of 1; their rank "
        "correlation is 0.50 in the mean.",
        "b: the modelled best is number 3 of 8 measured.",
    ]

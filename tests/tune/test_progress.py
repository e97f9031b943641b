# SPDX-License-Identifier: Apache-2.0
"""Where a campaign of tuning is, and how long it takes."""

import time

import pytest

from half_tuned import half_tuned
from smartmem_tvm.tune.progress import gain_so_far, headline, time_left


@pytest.fixture
def campaign():
    return half_tuned()


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

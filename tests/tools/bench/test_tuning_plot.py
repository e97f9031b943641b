# SPDX-License-Identifier: Apache-2.0
"""The picture of what tuning brought."""

from types import SimpleNamespace

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.bench.tuning_plot import best_so_far, draw


def kernels(count):
    return [
        SimpleNamespace(
            name=f"kernel{n}",
            share=1 / count,
            untuned=2.0,
            times=[None, 2.0, 1.0],
            winner={"seconds": 1.0} if n else None,
            gain=1.5,
        )
        for n in range(count)
    ]


def test_the_best_time_only_falls():
    assert best_so_far([None, 3.0, 4.0, None, 2.0]) == [float("inf"), 3.0, 3.0, 3.0, 2.0]
    assert best_so_far([]) == []


def test_kernels_of_large_shares_are_named(tmp_path):
    draw(kernels(12), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "kernel0 (8%)" in text and "kernel7" in text and "kernel8" not in text


def test_a_picture_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        draw(kernels(1), tmp_path / "missing" / "a.svg")

# SPDX-License-Identifier: Apache-2.0
"""The picture of the gains."""

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.bench.columns import activations, latency
from smartmem_tvm.tools.bench.plot import draw, gains, require_matplotlib


def facts(kernels, moved, milliseconds):
    return {"kernels": kernels, "bytes_moved": {"activations": moved}, "latency_ms": {"median": milliseconds}}


ROW = {
    "model": "m",
    "name": "M",
    "systems": {"-a -b": facts(8, 400, 6.0), "-b": facts(4, 400, 8.0), "smartmem": facts(2, 100, 3.0)},
    "ablation": [
        {"added": None, "system": "-a -b"},
        {"added": "a", "system": "-b"},
        {"added": "b", "system": "smartmem"},
    ],
}


def test_gains_are_relative_to_none_of_the_techniques():
    assert gains(ROW, lambda each: each["kernels"]) == [(None, 1.0), ("a", 2.0), ("b", 4.0)]
    assert gains(ROW, activations) == [(None, 1.0), ("a", 1.0), ("b", 4.0)]
    assert gains(ROW, latency) == [(None, 1.0), ("a", 0.75), ("b", 2.0)]


def test_a_step_that_failed_has_no_gain():
    row = {**ROW, "systems": {**ROW["systems"], "-b": {"error": "It broke."}}}
    assert gains(row, latency) == [(None, 1.0), ("b", 2.0)]
    row["systems"]["-a -b"] = {"error": "It broke."}
    assert gains(row, latency) == []


def bars(monkeypatch):
    """Every bar that is drawn, as (height, bottom)."""
    from matplotlib.axes import Axes

    drawn, original = [], Axes.bar

    def bar(self, x, height, width, bottom=0.0, **style):
        drawn.append((height, bottom))
        return original(self, x, height, width, bottom, **style)

    monkeypatch.setattr(Axes, "bar", bar)
    return drawn


def test_gains_are_stacked_and_costs_hang_below_zero(tmp_path, monkeypatch):
    drawn = bars(monkeypatch)
    draw([ROW], tmp_path / "gains.png")
    assert drawn == [(1, 0), (1, 1), (2, 2), (1, 0), (3, 1), (1, 0), (-0.25, 0), (1.25, 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["gains.png"]
    assert (tmp_path / "gains.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw(tmp_path):
    with pytest.raises(UserError, match="not drawn"):
        draw([{"model": "m", "name": "M", "error": "No such file."}], tmp_path / "gains.png")


def test_matplotlib_and_the_format_are_asked_for_before_measuring(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"\.png"):
        require_matplotlib(tmp_path / "gains.txt")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"smartmem-tvm\[plots\]"):
        require_matplotlib(tmp_path / "gains.png")

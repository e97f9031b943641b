# SPDX-License-Identifier: Apache-2.0
"""docs/memory_accesses.md shows the committed figures, which reach the paper's, and commands that exist."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from smartmem_tvm.cli.accesses import ROWS
from smartmem_tvm.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "accesses.py"))
BENCH = runpy.run_path(str(ROOT / "benchmarks" / "accesses.py"))
NETWORKS = json.loads(BENCH["RESULTS"].read_text(encoding="utf-8"))["networks"]
COUNT = runpy.run_path(str(ROOT / "benchmarks" / "counters.py"))
COUNTERS = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "counters.py"))
COUNTED = json.loads(COUNT["RESULTS"].read_text(encoding="utf-8"))
LAUNCHES = [
    ("k00_a_kernel(float *)", "read", "4,800"),
    ("k00_a_kernel_1", "read", "16"),
    ("k00_a_kernel", "write", "3"),
    ("k01_b_kernel", "read", "7"),
]
COUNTS = {"loads": 90.0, "stores": 10.0, "texel_loads": 0.0, "texel_stores": 0.0, "l1_misses": 30.0, "l2_misses": 20.0}


def test_the_chart_is_that_of_the_committed_file(tmp_path):
    RENDER["draw"](NETWORKS, tmp_path / "chart.svg")
    drawn, committed = (path.read_text(encoding="utf-8") for path in (tmp_path / "chart.svg", RENDER["CHART"]))
    assert texts(drawn) == texts(committed) and len(texts(drawn)) > 4 * len(NETWORKS)


def texts(svg):
    # matplotlib draws letters as paths, with the text in a comment.
    return re.findall(r"<!-- (.*?) -->", svg)


def test_every_network_is_there():
    assert list(NETWORKS) == list(BENCH["NETWORKS"])
    for row in NETWORKS.values():
        assert list(row["sides"]) == ["tvm_default", *RENDER["COLORS"]]
        assert row["device"]["name"] == BENCH["DEVICE"]


# SmartMem measures 1.8 times fewer accesses and 2.0 times fewer misses than other systems, on average (Figure 7).
@pytest.mark.parametrize("name", ["CSWin-S", "ResNeXt-50"])
def test_as_few_accesses_and_misses_as_in_the_paper(name):
    accesses, misses = (
        RENDER["fewer"](NETWORKS[name]["sides"], ROWS[RENDER[figure]])["smartmem"] for figure in ("ASKED", "MISSED")
    )
    assert accesses >= 1.8 and misses >= 2.0


def test_what_the_columns_say():
    """The page describes each column in words."""
    for name, row in NETWORKS.items():
        asked, missed = (
            {side: ROWS[RENDER[figure]](counts) for side, counts in row["sides"].items()}
            for figure in ("ASKED", "MISSED")
        )
        ours = [missed[side] for side in ("elimination", "layout", "smartmem")]
        assert asked["tvm_default"] / asked["elimination"] > 2 * asked["elimination"] / asked["smartmem"]
        assert asked["smartmem"] < min(asked["elimination"], asked["layout"])
        assert max(ours) < 1.33 * min(ours)
        changed = asked["layout"] / asked["elimination"]
        assert changed > 1.2 if name in ("ConvNeXt-T", "ResNeXt-50", "CSWin-S") else 0.99 < changed < 1.01


def test_both_sides_of_every_network_were_counted():
    assert {(row["network"], row["side"]) for row in COUNTED["kernels"]} == {
        (network, side) for network in COUNT["NETWORKS"] for side in ("smartmem", "TVM default")
    }
    assert COUNTED["row"] == COUNT["DEVICE"]


def test_the_model_is_near_the_counters():
    """The page names the kernels for which the model is off."""
    kernels = COUNTED["kernels"]
    asked, stored, passed, read = (COUNTERS["ratios"](kernels, column) for column in COUNTERS["COLUMNS"])

    def off(ratios, limit):
        return [row["kernel"] for row, ratio in zip(kernels, ratios) if not 1 / limit < ratio < limit]

    assert off(asked, 1.1) == ["layer_norm7"] and off(stored, 1.05) == [] and off(read, 1.05) == ["reshape6"]
    assert (passed > 0.95).all()  # too high, where it is not right
    for column in COUNTERS["COLUMNS"]:
        values = ([row[key][column] for row in kernels] for key in ("model", "counters"))
        assert COUNTERS["correlation"](*values) > 0.98


def test_launches_of_a_kernel_are_added_up():
    """Launches are read in Nsight Compute's format; its text around the table is left out."""
    lines = [
        '==PROF== Connected to process 7 (python3)\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
        *(f'"{i}","{name}","{metric}","sector","{value}"' for i, (name, metric, value) in enumerate(LAUNCHES)),
    ]
    assert COUNT["counters"]("\n".join(lines)) == {"k00_a": {"read": 4816.0, "write": 3.0}, "k01_b": {"read": 7.0}}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "are closed to this user"),
        ("==ERROR== no kernels were profiled", "no kernels were profiled"),
    ],
)
def test_what_stops_the_profiler_is_said(said, message, tmp_path, monkeypatch):
    profiler = tmp_path / "ncu"
    profiler.write_text(f"#!/bin/sh\necho '{said}'\nexit 1\n")
    profiler.chmod(0o755)
    monkeypatch.setenv("NCU", str(profiler))
    with pytest.raises(UserError, match=message):
        COUNT["count"](tmp_path)
    assert not (tmp_path / COUNT["COUNTED"]).exists()


def test_no_profiler_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("NCU", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with pytest.raises(UserError, match="install NVIDIA Nsight Compute"):
        COUNT["profiler"]()


def test_what_a_table_says():
    def side(label, scale):
        counts = {name: 1e6 * count / scale for name, count in COUNTS.items()}
        lines = {"load_lines": 80e6 / scale, "store_lines": 8e6 / scale}
        return {"label": label, **counts, **lines, "launches": 4, "not_modelled": 3 - scale}

    sides = {"tvm_default": side("TVM default", 1), "smartmem": side("ours", 2)}
    row = {**next(iter(NETWORKS.values())), "sides": sides, "date": "2026-01-01"}
    assert RENDER["fewer"](sides, ROWS[RENDER["ASKED"]]) == {"smartmem": 2.0}
    page = RENDER["page"]({"N": row})
    assert "| N | 88.00 | 44.00 | **2.00x** |" in page and "| N | 20.00 | 10.00 | **2.00x** |" in page
    assert "| loads and stores of threads, M | 100.00 | 50.00 |" in page and "| kernels launched | 4 | 4 |" in page
    assert "Not counted: 3 launches of N." in page and "2026-01-01" in page

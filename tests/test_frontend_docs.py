# SPDX-License-Identifier: Apache-2.0
"""docs/frontend.md shows torch programs with right results, and the same kernels from torch and from ONNX."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = json.loads((ROOT / "benchmarks" / "torch_doors.json").read_text(encoding="utf-8"))
COSTS = ("kernels", "layout_kernels", "bytes")


def test_no_network_comes_twice():
    assert len({row["name"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_both_doors(row):
    assert row["error"] < 1e-5
    if row["onnx"]["exporter"] == "dynamo":  # another exporter writes another graph
        assert [row["from_torch"][key] for key in COSTS] == [row["onnx"][key] for key in COSTS]

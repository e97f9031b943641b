# SPDX-License-Identifier: Apache-2.0
"""docs/accuracy.md shows the committed files, in which every network is right on every target."""

import runpy
import sys
from pathlib import Path

import pytest

from smartmem_tvm.tables.suite import SMARTMEM18

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "accuracy.py"))
MEASURED = {f"{each['target']}, {each['device']}": each for each in RENDER["sections"]()}
TOLERANCE = 1e-4


def test_every_target_was_measured():
    assert {"cpu", "opencl", "cuda"} <= {each["target"] for each in MEASURED.values()}


@pytest.mark.parametrize("where", MEASURED)
def test_all_eighteen_networks_are_right(where):
    rows = MEASURED[where]["networks"]
    assert list(rows) == [entry.file for entry in SMARTMEM18]
    assert [name for name, row in rows.items() if row.get("failed") or not row["error"] <= TOLERANCE] == []
    assert all(row["outputs"] and row["error"] == max(row["outputs"].values()) > 0 for row in rows.values())

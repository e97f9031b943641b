# SPDX-License-Identifier: Apache-2.0
"""docs/precision.md is what the committed file says, and that says that every network is right in all combinations."""

import json
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "precision.py"))
ROWS = json.loads(RENDER["RESULTS"].read_text(encoding="utf-8"))["rows"]


def test_every_network_is_right_in_all_combinations():
    wanted = [(n, m, p) for n in RENDER["NETWORKS"] for p in RENDER["TOLERANCES"] for m in RENDER["TARGETS"]]
    assert list(ROWS) == [", ".join(each) for each in wanted]
    wrong = {key: row for key, row in ROWS.items() if "failed" in row}
    assert wrong == {}
    errors = {(n, m, p): ROWS[f"{n}, {m}, {p}"]["error"] for n, m, p in wanted}
    assert {key for key, error in errors.items() if not 0 < error <= RENDER["tolerance"](key[0], key[2])} == set()
    # Halves are seen, whatever the network.
    assert all((error > 1e-4) == (precision == "half-storage") for (_, _, precision), error in errors.items())

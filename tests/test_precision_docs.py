# SPDX-License-Identifier: Apache-2.0
"""docs/precision.md shows the committed file, in which every network is right in all combinations."""

import json
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "precision.py"))
BFLOAT16 = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "bfloat16.py"))
ROWS = json.loads(RENDER["RESULTS"].read_text(encoding="utf-8"))["rows"]


def test_every_network_is_right_in_all_combinations():
    wanted = [(n, m, p) for n in RENDER["NETWORKS"] for p in RENDER["TOLERANCES"] for m in RENDER["TARGETS"]]
    assert list(ROWS) == [", ".join(each) for each in wanted]
    wrong = {key: row for key, row in ROWS.items() if "failed" in row}
    assert wrong == {}
    errors = {(n, m, p): ROWS[f"{n}, {m}, {p}"]["error"] for n, m, p in wanted}
    assert {key for key, error in errors.items() if not 0 < error <= RENDER["tolerance"](key[0], key[2])} == set()
    # Halves show in the error of every network.
    assert all((error > 1e-4) == (precision == "half-storage") for (_, _, precision), error in errors.items())


def test_bfloat16_on_cpus_errs_at_most_twice_as_much_as_torch():
    found = json.loads((ROOT / "benchmarks" / "bfloat16.json").read_text(encoding="utf-8"))["rows"]
    assert {key.rpartition(", ")[0] for key in found} == set(BFLOAT16["NETWORKS"])
    for key, row in found.items():
        errors = row["errors"]
        assert 1e-4 < errors["ours bfloat16"] <= 2 * errors["torch bfloat16"], key
        assert errors["ours float32"] < 1e-5, key
        assert row["ms"]["ours bfloat16"] < 0.5 * row["ms"]["ours float32"], key

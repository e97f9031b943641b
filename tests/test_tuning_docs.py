# SPDX-License-Identifier: Apache-2.0
"""docs/tuning.md shows the committed comparisons, which are complete and fair."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from smartmem_tvm.tools.bench.results import read

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "tuning.py"))
NETWORKS = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "tuned.py"))
FOUND = {name: json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8")) for name in RENDER["FILES"]}


def test_on_the_gpu_tuned_networks_are_ahead_of_every_mode_of_torch_that_was_done_in_time():
    rows = {row["name"]: row for row in read(ROOT / "benchmarks" / "tuned_h100.json").values()}
    for name, factor in {"swin_t": 1.23, "autoformer_s": 1.11}.items():
        ratios = [each for system, each in NETWORKS["_against"](rows[name]).items() if system.startswith("torch-")]
        assert len(ratios) >= 3 and max(ratios) <= 1 / factor


def test_the_kernels_are_of_the_kinds_that_matter():
    kinds = [kernel.kind for kernel in RENDER["WHAT"].values()]
    assert [kinds.count(kind) for kind in ("matmul", "convolution", "reduction")] == [5, 3, 2]


@pytest.mark.parametrize("name", FOUND)
def test_both_strategies_had_the_same_trials(name):
    for row in FOUND[name]["rows"]:
        tried = [row[strategy]["trials"] for strategy in ("genetic", "evolutionary")]
        # a space may be exhausted before
        assert max(tried) <= FOUND[name]["trials"] and tried[0] <= tried[1], (row["name"], tried)
    assert RENDER["_ratio"](FOUND[name]["rows"]) <= 1


def test_ratios_are_of_the_same_seed():
    def row(seed, untuned, genetic, evolutionary):
        facts = [{"us": us, "seconds": 2.0, "failed": 1, "wrong": 0} for us in (genetic, evolutionary)]
        key = {"model": "swin_t", "name": "matmul_add19", "seed": seed, "date": "2026-01-01", "untuned_us": untuned}
        return {**key, "genetic": facts[0], "evolutionary": facts[1]}

    machine = {"cpu": "C", "os": "O", "apache-tvm": "1"}
    found = {"target": "cpu", "device": None, "threads": 1, "trials": 64, "machine": machine}
    page = RENDER["page"]({**found, "rows": [row(0, 4.0, 1.0, 2.0), row(1, 4.0, 4.0, 2.0), row(2, 4.0, 2.0, 2.0)]})
    assert "| matmul 196x1536x384, residual (swin_t) | 4.0 | 2.0 | 2.0 | 1.00x | 2.00x |" in page
    assert "over 1 kernels and 3 seeds, 64 trials each: genetic over evolutionary 1.00x, over untuned 0.50x" in page
    assert "Candidates that failed: 3 and 3; finalists with wrong results: 0 and 0." in page
    assert "Measured on C (cpu, 1 thread); O; apache-tvm 1; 2026-01-01." in page

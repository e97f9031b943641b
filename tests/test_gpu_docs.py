# SPDX-License-Identifier: Apache-2.0
"""docs/gpu.md shows the committed measurements, and commands that exist."""

import re
import runpy
import sys
from pathlib import Path

from smartmem_tvm.bench.names import parse_systems
from smartmem_tvm.bench.results import read
from smartmem_tvm.tables.suite import SUITES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "gpu.py"))
ROWS = list(read(ROOT / "benchmarks" / RENDER["RESULTS"]).values())


def test_every_network_was_measured_and_is_right():
    assert {row["model"] for row in ROWS} == {entry.file for entry in SUITES["gpu"]}
    for row in ROWS:
        errors = {name: each["relative_error"] for name, each in row["systems"].items() if "relative_error" in each}
        assert errors and max(errors.values()) <= 1e-4, errors


def test_make_measures_what_the_tables_show():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (against,) = re.findall(r"^GPU_AGAINST := (\S+)$", makefile, re.MULTILINE)
    assert against == RENDER["AGAINST"]
    assert [system.name for system in parse_systems(against, "cuda")] == against.split(",")


def test_ratios_and_what_is_missing():
    def facts(milliseconds, **more):
        return {"latency_ms": {"median": milliseconds}, "relative_error": 1e-6, **more}

    systems = {
        "smartmem": facts(1.0, kernels=9, kernels_per_graph=[3, 4]),
        "smartmem@opencl": facts(1.25),
        "torch-eager": facts(4.0),
        "torch-compile": facts(2.0),
        "torch-max-autotune": {"error": "torch-max-autotune gave no answer within 9 s."},
    }
    machine = {"cpu": "C", "cores": 2, "os": "O", "apache-tvm": "1", "onnxruntime": "2"}
    machine["devices"] = {"cuda": {"name": "G", "platform": "CUDA 13.0", "driver": "580"}}
    row = {"name": "N", "date": "2026-01-01", "machine": machine, "systems": systems}
    page = RENDER["page"]([row])
    assert "| N | 1.000 | - | 1.250 | - | - | 4.000 | 2.000 | - | - | 0.50x | 1.25x |" in page
    assert "1 networks: 0.50x" in page and "- N: torch-max-autotune gave no answer" in page
    assert "| N | 9 / - | 3+4=7 | 1.0e-06 | 1.0e-06 | - | 1.0e-06 |" in page
    assert "cuda: G, CUDA 13.0, driver 580" in page

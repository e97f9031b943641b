# SPDX-License-Identifier: Apache-2.0
"""docs/gpu.md shows the committed measurements, and commands that exist."""

import json
import re
import runpy
import sys
from pathlib import Path

from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.tools.bench.names import parse_systems
from smartmem_tvm.tools.bench.results import read

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "gpu.py"))
PAGE = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "gpu_audit.py"))
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


AUDIT = json.loads((ROOT / "benchmarks" / "gpu_audit.json").read_text(encoding="utf-8"))["networks"]


ONE_NUMBER = {"CLIPModel@1"}
"""Networks whose output is a single number, so that an error is one draw: docs/gpu.md says what many draws give."""


def test_half_is_no_farther_off_than_twice_torch_s_half():
    measured = {name: row["errors"] for name, row in AUDIT.items() if "ours half" in row.get("errors", {})}
    rows = {name: errors for name, errors in measured.items() if name not in ONE_NUMBER}
    assert len(rows) >= 20
    assert not {name for name, errors in rows.items() if errors["ours half"] > 2 * errors["torch half"]}


def test_networks_beside_torch_s_best_mode():
    times = {"ours float32": 2.0, "ours half": 1.0, "torch half:reduce-overhead": 2.0, "torch half:max-autotune": 1.6}
    row = {"milliseconds": times, "errors": {"ours half": 1e-3}, "device": "D", "torch": "2", "date": "2026-01-01"}
    text = PAGE["networks"]({"a@1": row, "b@8": {"error": "It is odd."}})
    assert "| a@1 | 2.000 | - | - | 1.000 | 1.600 | 0.62x | 0.50x | 1.0e-03 | - |" in text
    assert "half over torch's 0.62x (worst 0.62x)" in text and "| b@8 | It is odd. |" in text
    short = PAGE["networks"]({"a@1": {**row, "tf32_convolutions": True}})
    assert "TF32" not in text and "in TF32, its default, in a@1" in short


def test_single_kernels_beside_torch():
    row = {"kernel": "product", "shape": [4, 8, 2], "type": "float16", "ms": {"ours": 0.2, "torch": 0.1}, "error": 1e-4}
    text = PAGE["kernels"]({"rows": [row], "device": "D", "torch": "2", "date": "2026-01-01"})
    assert "| product 4 x 8 x 2 | float16 | 200.0 | 100.0 | - | - | 50% | 1.0e-04 |" in text

# SPDX-License-Identifier: Apache-2.0
"""The measurements in docs/textures.md are complete and right, and made by commands that exist."""

import re
import runpy
import sys
from pathlib import Path

from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.tools.bench.names import parse_systems
from smartmem_tvm.tools.bench.results import read

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "textures.py"))


def test_all_networks_were_measured_and_are_right():
    rows = list(read(ROOT / "benchmarks" / RENDER["RESULTS"]).values())
    assert {row["model"] for row in rows} == {entry.file for entry in SUITES["gpu"]}
    for row in rows:
        for name in (RENDER["TEXTURES"], RENDER["BUFFERS"]):
            assert row["systems"][name]["relative_error"] <= 1e-4, (row["model"], name)


def test_make_measures_what_the_tables_show():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (against,) = re.findall(r"^TEXTURES_AGAINST := (\S+)$", makefile, re.MULTILINE)
    assert against == RENDER["AGAINST"]
    assert [system.name for system in parse_systems(against, "opencl-texture")] == against.split(",")


def test_ratios_families_and_what_is_missing():
    def facts(milliseconds, **more):
        return {
            "latency_ms": {"median": milliseconds},
            "relative_error": 1e-6,
            "kernels": 9,
            "layout_kernels": 3,
            **more,
        }

    systems = {
        "smartmem": facts(1.0, layout_share=0.0, launch_us={"matmul/texture/a": 2.0, "norm/buffer/b": 1.0}),
        "smartmem@opencl": facts(2.0, layout_share=0.0, launch_us={"matmul/buffer/a": 4.0, "norm/buffer/b": 1.0}),
        "tvm@opencl": facts(8.0, layout_share=0.25),
        "tvm-textures": {"error": "tvm-textures gave no answer within 9 s."},
        "tvm-textures-matmul": facts(4.0),
    }
    machine = {"cpu": "C", "cores": 2, "os": "O", "apache-tvm": "1", "onnxruntime": "2"}
    machine["devices"] = {"opencl-texture": {"name": "G", "platform": "OpenCL 3.0", "driver": "580"}}
    rows = [
        {"model": model, "name": "N", "date": "2026-01-01", "machine": machine, "systems": systems} for model in "ab"
    ]
    page = RENDER["page"]([{**rows[0], "model": "swin_t"}, rows[1]])
    assert "| N | 1.000 | 2.000 | 8.000 | - | 4.000 | 4.00x | 2.00x |" in page
    assert "| ours, textures, transformers | 8.00x of 1 | - | 4.00x of 1 | 4.00x of 1 |" in page
    assert "| ours, buffers, all networks | 4.00x of 2 | - | 2.00x of 2 | 2.00x of 2 |" in page
    assert "| N | 9, 3, 0%, 1e-06 | 9, 3, 0%, 1e-06 | 9, 3, 25%, 1e-06 | -, -, - | 9, 3, -, 1e-06 |" in page
    assert "| matmul | 2 | 0.50x | 2 |" in page and "norm |" not in page
    assert "N 1 of 2, N 1 of 2." in page and "- N: tvm-textures gave no answer" in page
    assert "Measured on G, OpenCL 3.0, driver 580" in page

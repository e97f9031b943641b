# SPDX-License-Identifier: Apache-2.0
"""docs/compile_time.md shows the measurements, and compiling is as quick as it says."""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import onnx
import pytest

from smartmem_tvm.pipeline import phases_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
PAGE = (ROOT / "docs" / "compile_time.md").read_text(encoding="utf-8")
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "compile_time.py"))
MEASURE = runpy.run_path(str(ROOT / "benchmarks" / "compile_time.py"))
BY_NODES = runpy.run_path(str(ROOT / "benchmarks" / "compile_nodes.py"))
NODES = json.loads((ROOT / "benchmarks" / RENDER["NODES"]).read_text(encoding="utf-8"))
CPU = json.loads((ROOT / "benchmarks" / RENDER["FILES"]["CPU"]).read_text(encoding="utf-8"))


def test_the_chart_is_that_of_the_committed_file():
    chart = RENDER["CHART"].read_text(encoding="utf-8")
    # matplotlib writes each label in a comment before its outlines.
    labels = set(re.findall(r"<!-- (.*?) -->", chart))
    assert {f"{RENDER['total'](each):.1f} s" for each in CPU["networks"]} <= labels
    assert set(RENDER["GROUPS"]) <= labels


def test_swin_on_two_cores_is_compiled_within_a_minute():
    assert CPU["machine"]["cores"] == 2 and CPU["runs"] >= 3
    first = CPU["networks"][0]
    assert first["model"] == "models/swin_t.onnx" and max(first["totals"]) < 60


def test_compile_time_grows_no_faster_than_depth():
    networks = CPU["networks"]
    assert [each["blocks"] for each in networks] == [12, 24, 48]
    deeper = networks[-1]["blocks"] / networks[0]["blocks"]
    assert RENDER["total"](networks[-1]) < deeper * RENDER["total"](networks[0])
    assert networks[-1]["functions"] < 1.2 * networks[0]["functions"]


def test_every_phase_has_a_place_in_the_chart():
    known = {phase for _, phases in RENDER["GROUPS"].values() for phase in phases}
    assert set(CPU["networks"][0]["seconds"]) <= known
    assert sum(RENDER["grouped"](CPU["networks"][0])) == pytest.approx(RENDER["total"](CPU["networks"][0]))


def test_time_grows_no_faster_than_nodes():
    networks = NODES["networks"].values()
    for kind in ("layers", "steps"):
        found = sorted((each for name, each in NODES["networks"].items() if name.startswith(kind)), key=_nodes)
        assert len(found) >= 2 and found[-1]["nodes"] > 3.5 * found[0]["nodes"]
        each = [RENDER["per_node"](network) for network in found]
        assert max(each) < 1.5 * min(each)
    assert all(str(network["nodes"]) in PAGE for network in networks)


def _nodes(network: dict) -> int:
    return network["nodes"]


@pytest.mark.parametrize("kind", ["layers", "steps"])
def test_the_networks_are_as_deep_as_one_likes(kind):
    small, large = (BY_NODES[kind](depth) for depth in (1, 3))
    onnx.checker.check_model(large, full_check=True)
    assert len(large.graph.node) - 1 == pytest.approx(3 * (len(small.graph.node) - 1), abs=2)


@pytest.mark.slow
def test_what_a_process_measures():
    found = MEASURE["in_process"]("models/swin_t.onnx", "cpu", sorted(os.sched_getaffinity(0))[:1])
    expected = [phase.name for phase in phases_of(None)]
    assert list(found["phases"]) == ["imports", "model read", *expected, MEASURE["LOWERING"], MEASURE["CODE"]]
    assert all(seconds > 0 for seconds in found["phases"].values())
    assert 0 < found["functions"] < found["kernels"]


@pytest.mark.parametrize("variable", ["SMARTMEM_CUDA_CACHE", "SMARTMEM_CUDA_CACHE_MB", "TVM_CUDA_COMPILE_MODE"])
def test_variables_are_explained(variable):
    assert f"| `{variable}` |" in PAGE

# SPDX-License-Identifier: Apache-2.0
"""docs/cpu.md shows the committed comparison with other compilers, which is complete."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.tools.bench.names import parse_systems
from smartmem_tvm.tools.bench.results import failures, read

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "peers.py"))
SERVED = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "throughput.py"))
MEASURED = {name: RENDER["rows_of"](name) for name in RENDER["FILES"]}
PEERS = ["onnxruntime", "openvino", "iree", "mnn", "torch-compile"]


@pytest.mark.parametrize("name", MEASURED)
def test_every_system_was_measured_on_every_network_and_agrees(name):
    rows = MEASURED[name]
    assert [row["model"] for row in rows] == [entry.file for entry in SUITES["peers"]]
    threads = {1: ["tvm-unscheduled"], 4: []}
    for row in rows:
        assert not failures(row) and row["in_turns"]
        measured = {system for system, facts in row["systems"].items() if "latency_ms" in facts}
        assert measured >= {"smartmem", *PEERS, *threads[row["threads"]]}
        errors = {system: row["systems"][system].get("relative_error", 0) for system in measured}
        assert errors.pop("smartmem") <= 1e-4
        assert max(errors.values()) <= 1e-3, "another network, other weights or another precision shows here"
    assert {row["threads"] for row in rows} == {int(re.search(r"\d+", name)[0])}


@pytest.mark.parametrize("name", SERVED["FILES"])
def test_every_system_served_every_network(name):
    rows = list(read(ROOT / "benchmarks" / name).values())
    assert {row["name"] for row in rows} == set(SERVED["NAMES"])
    for row in rows:
        assert not failures(row) and row["in_turns"] and f"_{row['streams']}." in name
        assert set(row["systems"]) == set(SERVED["TITLES"])
        for facts in row["systems"].values():
            assert facts["throughput"]["per_second"] > 0 and facts.get("relative_error", 0) <= 1e-4


def test_the_makefile_serves_what_the_page_shows():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    systems = re.search(r"^SERVING := (\S+)$", text, re.MULTILINE)[1]
    assert {"smartmem", *(system.kind for system in parse_systems(systems, "cpu"))} == set(SERVED["TITLES"])
    for name in SERVED["FILES"]:
        assert f"-o benchmarks/{name}" in text


def test_the_makefile_measures_what_the_page_shows():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    systems = re.search(r"^PEERS := (\S+)$", text, re.MULTILINE)[1]
    assert [system.kind for system in parse_systems(systems, "cpu")] == PEERS
    assert set(RENDER["TITLES"]) == {"smartmem", *PEERS, "tvm-unscheduled"}
    for name in RENDER["FILES"]:
        assert f"-o benchmarks/{name}" in text


def test_the_page_shows_what_was_measured_beside_busy_processes():
    """No median of this package is far above the better of the others."""
    facts = json.loads((ROOT / "benchmarks" / "busy_machine.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "cpu.md").read_text(encoding="utf-8")
    for network, by_busy in facts["rows"].items():
        assert set(by_busy) == {"0", "2", "4"}
        for busy, row in by_busy.items():
            cells = (f"{each['median']:.3g} ({each['mean']:.3g})" for each in row.values())
            assert f"| {network} | {busy} | {' | '.join(cells)} |" in page
            others = [each["median"] for name, each in row.items() if not name.startswith("ours")]
            assert len(others) == 3 and row["ours"]["median"] <= 1.5 * min(others)

# SPDX-License-Identifier: Apache-2.0
"""docs/opencl.md and native/README.md describe every variable and file, with the sources' messages."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.tools.bench.results import read

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
PAGE = (ROOT / "docs" / "opencl.md").read_text(encoding="utf-8")
NATIVE = {
    path: path.read_text(encoding="utf-8") for path in (ROOT / "native").rglob("*") if path.suffix in (".cc", ".h")
}
PYTHON = [path.read_text(encoding="utf-8") for path in (ROOT / "python").rglob("*.py")]


def table(heading: str) -> list[str]:
    """Return the first column of the table in a section."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")][1:]


RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "opencl.py"))
MEASURED = {name: json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8")) for name in RENDER["FILES"]}
ROWS = {name: list(read(ROOT / "benchmarks" / name).values()) for name in RENDER["FILES"].values()}


@pytest.mark.parametrize("name", ROWS)
def test_committed_networks_are_right(name):
    assert {row["model"] for row in ROWS[name]} == {entry.file for entry in SUITES["gpu"]}
    systems = [RENDER["on_opencl"](row, each) for row in ROWS[name] for each in ("smartmem", "tvm")]
    assert all(each["relative_error"] <= 1e-4 for each in systems)


def test_committed_launches_cost_no_more_than_pyopencls():
    (found,) = MEASURED["opencl_h100.json"]["overhead"]["results"]
    theirs = min(value for way, value in found["seconds"].items() if way.startswith("pyopencl"))
    assert max(value for way, value in found["seconds"].items() if not way.startswith("pyopencl")) <= 1.2 * theirs


def test_committed_second_start_on_pocl_is_ten_times_faster():
    (found,) = MEASURED["opencl_pocl.json"]["start"]["results"]
    assert found["right"] and found["second process"]["compiled"] == 0
    assert min(found["times_faster"].values()) >= 10


def literals(text: str) -> str:
    """Return the string literals of a source, adjacent pieces joined."""
    return " ".join(re.sub(r'"[^"\n]*?"', lambda each: each[0].strip('"'), text).split())


def test_every_variable_is_explained():
    read = {name for text in NATIVE.values() for name in re.findall(r'"(SMARTMEM_OPENCL_\w+)"', text)}
    shown = {name for row in table("Environment variables") for name in re.findall(r"SMARTMEM_OPENCL_\w+", row)}
    assert "SMARTMEM_OPENCL_CACHE" in read and shown == read


@pytest.mark.parametrize("message", [row for row in table("When something is wrong") if row.startswith("`")])
def test_messages_are_those_of_the_sources(message):
    sources = " ".join(literals(text) for text in [*NATIVE.values(), *PYTHON])
    wanted = re.split(r"\.\.\.|opencl:N|libOpenCL\.so\.1|argument N| (?:texture|buffer)", message.split("`")[1])
    for part in filter(None, (each.strip(" :") for each in wanted)):
        assert part in sources, part


def test_every_file_is_described():
    listed = set(re.findall(r"`([\w./]+)`", (ROOT / "native" / "README.md").read_text(encoding="utf-8")))
    files = {path.stem if path.suffix == ".cc" else path.name for path in NATIVE if path.parent.name == "native"}
    headers = {f"{stem}.h" for stem in listed}  # one entry for a source and its header
    assert files - headers - listed == set()
    assert {name for name in listed if name.endswith(".h")} <= files

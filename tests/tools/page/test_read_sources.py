# SPDX-License-Identifier: Apache-2.0
"""What a file is, is found out from what is in it."""

import json

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.page.device_times import comparison
from smartmem_tvm.tools.page.read_sources import read_sources

LATENCY = {"latency_ms": {"median": 1.0}}
KERNELS = {"kernels": [{"kernel": "k", "seconds": None}]}
ROWS = {"rows": [{"model": "a", "systems": {}}, {"model": "b", "systems": {}}]}


@pytest.mark.parametrize(
    ("content", "rows", "measurements"),
    [(LATENCY, 0, 1), (KERNELS, 0, 1), (ROWS, 2, 0), ([LATENCY, KERNELS, ROWS], 2, 2)],
)
def test_kinds(tmp_path, content, rows, measurements):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    found = read_sources([str(path)])
    assert (len(found.rows), len(found.measurements)) == (rows, measurements)
    assert {name for name, _ in found.rows + found.measurements} == {str(path)}


@pytest.mark.parametrize(
    "content", [{}, [], 3, [3], {"kernels": 5}, {"kernels": [5]}, {"rows": 1}, {"sizes": [3]}, {"sizes": [{}]}]
)
def test_nothing_of_ours(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"file\.json is none of the results known here"):
        read_sources([str(path)])


def test_a_measurement_of_several_sizes_has_a_row_for_each(tmp_path):
    sizes = [{"size": f"x {n}x4", "latency_ms": {"median": float(n)}, "device": {"name": "Phone"}} for n in (1, 3)]
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"folder": "here/out", "model": "net.onnx", "sizes": sizes}))
    found = comparison(read_sources([str(path)]).measurements, [])
    assert [(each["model"], each["median"]) for each in found] == [("net, x 1x4", 1.0), ("net, x 3x4", 3.0)]


def test_a_damaged_line_of_records_is_passed_over(tmp_path):
    run = {"run": "r", "date": "", "command": "", "target": {}, "threads": 1, "tvm": "", "schedules": 1}
    path = tmp_path / "a.records.jsonl"
    path.write_text(json.dumps(run) + "\n{torn")
    assert read_sources([str(path)]).records == [(str(path), [run])]

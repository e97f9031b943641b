# SPDX-License-Identifier: Apache-2.0
"""Rows as tables, sentences and CSV."""

import csv

import pytest

from smartmem_tvm.tools.bench.columns import (
    ABLATION_TITLES,
    TITLES,
    ablation_cells,
    cells,
    columns_of,
    conditions,
    csv_text,
    geometric_mean,
    means,
    one_line,
    per_graph,
    titles,
)


def facts(kernels, moved, milliseconds):
    return {
        "kernels": kernels,
        "layout_kernels": 0,
        "bytes_moved": {"activations": moved, "weights": 0},
        "latency_ms": {"median": milliseconds, "p10": milliseconds, "p90": milliseconds, "runs": 3},
    }


ROW = {
    "model": "m.onnx",
    "name": "M",
    "date": "2026-01-01",
    "threads": 2,
    "seconds": 5.0,
    "systems": {"smartmem": facts(2, 1e6, 3.0), "tvm": facts(4, 4e6, 6.0), "-a": facts(3, 2e6, 6.0)},
}
ABLATED = {**ROW, "ablation": [{"added": None, "system": "-a"}, {"added": "a", "system": "smartmem"}]}
FAILED = {"model": "n.onnx", "name": "N", "date": "2026-01-01", "error": "No such file."}


def test_table():
    lines = cells(ROW)
    assert [line[:2] for line in lines] == [("M", "smartmem"), ("", "tvm"), ("", "-a")]
    assert [line[1] for line in cells(ABLATED)] == ["smartmem", "tvm"], "the steps have a table of their own"
    assert cells(FAILED)[0][:3] == ("N", "failed", "-")
    assert all(len(line) == len(TITLES) for line in [*lines, *cells(FAILED)])


def test_ablation_table():
    lines = ablation_cells(ABLATED)
    assert [(line[1], line[2], line[-1]) for line in lines] == [("none", "3", "1.00x"), ("+ a", "2", "2.00x")]
    assert all(len(line) == len(ABLATION_TITLES) for line in lines)


def test_csv_has_a_line_for_each_system():
    lines = list(csv.DictReader(csv_text([ROW, FAILED]).splitlines()))
    assert [(line["model"], line["system"]) for line in lines] == [
        ("m.onnx", "smartmem"),
        ("m.onnx", "tvm"),
        ("m.onnx", "-a"),
        ("n.onnx", ""),
    ]
    assert float(lines[1]["activations_mb"]) == 4 and lines[1]["latency_ms_median"] == "6.0"
    assert lines[3]["error_message"] == "No such file." and lines[3]["kernels"] == ""


def test_kernels_in_graphs_have_a_column_where_there_are_graphs():
    assert "in graphs" not in titles(columns_of([ROW]))
    graphs = {**ROW, "systems": {**ROW["systems"], "b": {**facts(9, 1e6, 1.0), "kernels_per_graph": [3, 4]}}}
    columns = columns_of([ROW, graphs])
    shown = [line[titles(columns).index("in graphs")] for line in cells(graphs, columns)]
    assert shown == ["-", "-", "-", "3+4=7"]
    assert per_graph([117]) == "117"


def test_conditions_name_the_device():
    machine = {"devices": {"cuda": {"name": "G"}, "opencl": {"name": "G"}}}
    common = {**ROW, "in_turns": True, "machine": machine}
    assert conditions([FAILED, {**ROW, "in_turns": False, "machine": {}}]) == [
        "Latencies: medians, 10th and 90th percentile on 2 threads; runs taken one system after the other."
    ]
    (sentence,) = conditions([{**common, "target": "cuda"}, {**common, "target": "cuda"}])
    assert "percentile on G, inputs and outputs on the device, until it is done; runs taken in turns." in sentence


def test_sentences():
    assert one_line(FAILED) == "No such file."
    assert one_line(ABLATED) == "2 kernels, 0 layout, 3.0 ms, 0.50x tvm, measured in 5 s"
    assert means([ABLATED]) == ["Ours against tvm: activations moved 0.25x, latency 0.50x."]
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    twice = {**ABLATED, "systems": {**ROW["systems"], "tvm": facts(2, 1e6, 3.0)}}
    (sentence,) = means([ABLATED, twice, FAILED])
    assert "activations moved 0.50x (of 2)" in sentence and "latency 0.71x (of 2)" in sentence

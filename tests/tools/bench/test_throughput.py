# SPDX-License-Identifier: Apache-2.0
"""Requests, several at a time: what is counted, and in which rounds."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest

from bench_systems import prepare
from small_network import network
from smartmem_tvm.tools.bench import systems
from smartmem_tvm.tools.bench.columns import SERVED, cells, columns_of, conditions, csv_text, means, one_line
from smartmem_tvm.tools.bench.measure_systems import Method, measure
from smartmem_tvm.tools.bench.throughput import RequestEffort, serve


@pytest.mark.parametrize(
    ("requests", "streams", "rounds"), [(100, 1, [20] * 5), (23, 2, [12, 11]), (3, 3, [3]), (42, 1, [9, 9, 8, 8, 8])]
)
def test_rounds(requests, streams, rounds):
    assert RequestEffort(requests, streams).rounds() == rounds


def test_a_summary_counts_inferences_and_not_requests():
    summary = RequestEffort(4, 2, batch=8).summary([(1.0, [0.1, 0.2, 0.3]), (1.0, [0.4])])
    assert summary["per_second"] == 16 and summary["by_round"] == [24, 8] and summary["requests"] == 4
    assert summary["p50"] == pytest.approx(250) and 300 < summary["p90"] < summary["p99"] < 400
    assert RequestEffort(1).summary([(0.5, [0.5])])["p99"] == 500
    assert RequestEffort(1).summary([]) == {}


def test_threads_take_the_next_request_when_they_are_done():
    """Two at a time: never three, and together they serve all."""
    inside, most, lock = [0], [0], threading.Lock()

    def request():
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        with lock:
            inside[0] -= 1

    with ThreadPoolExecutor(2) as pool:
        seconds, latencies = serve(lambda work: pool.submit(work, "own"), lambda _: request, 2, 21)
    assert len(latencies) == 21 and most == [2]
    assert sum(latencies) > seconds > 0.02


def test_systems_serve_in_rounds_and_a_lost_one_is_named():
    method = Method(prepare, systems.largest_error, "reference", RequestEffort(20, 2, batch=3))
    requests = [{"system": "ours", "brings_inputs": True}, {"system": "dying", "trouble": "dies"}]
    found = measure([*requests, {"system": "reference"}], method)
    assert found["ours"]["throughput"]["per_second"] == pytest.approx(3 * 10 / 0.5)
    assert found["ours"]["throughput"]["by_round"] == [pytest.approx(60)] * 2
    assert found["ours"]["relative_error"] == 0 and found["ours"]["peak_mb"]["run"] > 0
    assert "SIGKILL" in found["dying"]["error"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """What ours and ONNX Runtime give for a batch of three, and what serving took."""
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(network(), path)
    common = {"path": str(path), "shapes": {}, "threads": 1, "seed": 0, "streams": 2, "batch": 3}
    more = {"options": {}, "target": "cpu"}
    ours = systems.prepare({**common, **more, "system": "smartmem"})
    inputs = ours.facts.pop("inputs")
    reference = systems.prepare({**common, "system": "onnxruntime"})
    outputs = [each.feed(inputs) for each in (ours, reference)]
    return inputs, outputs, [each.serve(7) for each in (ours, reference)]


def test_ours_and_onnxruntime_serve_the_same_batch(served):
    inputs, (ours, reference), times = served
    assert next(iter(inputs.values())).shape[0] == 3 == reference[0].shape[0]
    assert systems.largest_error(ours, reference) < 1e-5
    for seconds, latencies in times:
        assert len(latencies) == 7 and 0 < max(latencies) <= seconds


def row(rate: float) -> dict:
    facts = {"kernels": 3, "layout_kernels": 0, "peak_mb": {"run": 90.0}}
    times = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
    measured = {"date": "2026-01-01", "threads": 2, "in_turns": True, "seconds": 3.0, "machine": {}, "target": "cpu"}
    systems = {
        "smartmem": {**facts, "throughput": {"per_second": rate, **times}},
        "onnxruntime": {"throughput": {"per_second": 50.0, **times}},
    }
    return {"model": "net", "name": "net", "streams": 2, "batch": 4, **measured, "systems": systems}


def test_tables_show_rates():
    rows = [row(100.0)]
    assert columns_of(rows) == SERVED
    assert cells(rows[0], SERVED)[0] == ("net", "smartmem", "3", "100.00", "1.00", "2.00", "3.00", "-", "90")
    assert means(rows) == ["Ours against onnxruntime: inferences a second 2.00x."]
    assert "Requests: 2 at a time, batch 4 on 2 threads" in conditions(rows)[0]
    assert "100.00 inferences/s, 2.00x onnxruntime" in one_line(rows[0])
    assert "inferences_per_second" in csv_text(rows) and ",100.0,1.0,2.0,3.0," in csv_text(rows)

# SPDX-License-Identifier: Apache-2.0
"""``smartmem stats``: the object that the README's figures come from."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smartmem_tvm.cli import stats

KEYS = {"model", "target", "threads", "onnx_nodes", "onnx_layout_nodes", "compile_seconds", "compile_steps", "peak_mb"}
KEYS |= {"before_layouts"}
SIDE = {"kernels", "kernels_in_graph", "layout_kernels", "layout_transitions", "bytes_moved"}
# Kernels of the attention model: two matmuls and a softmax are left. TVM's default keeps all four layout operators
# but one reshape, which it fuses with the transpose before it.
ACTIVATION = 2 * 4 * 8 * 4  # bytes of every activation
WEIGHT = 8 * 8 * 4


def test_json(smartmem, model_path):
    outcome = smartmem("stats", model_path, "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data) == KEYS | {"tvm_default", "smartmem"}
    assert (data["onnx_nodes"], data["onnx_layout_nodes"]) == (7, 4)
    assert data["compile_seconds"] == pytest.approx(sum(data["compile_steps"].values()))
    ours, theirs = data["smartmem"], data["tvm_default"]
    assert set(ours) == set(theirs) == SIDE
    assert ours["kernels"] == ours["kernels_in_graph"] == 3
    assert ours["layout_kernels"] == 0
    assert ours["bytes_moved"] == {"activations": 3 * 2 * ACTIVATION, "weights": 2 * WEIGHT}
    assert theirs["kernels"] > 3 and theirs["layout_kernels"] >= 1
    assert theirs["bytes_moved"]["activations"] > ours["bytes_moved"]["activations"]
    assert theirs["bytes_moved"]["weights"] == 2 * WEIGHT


def test_run_measures_both(smartmem, model_path):
    outcome = smartmem("stats", model_path, "--run", "--repeat", 3, "--threads", 1, "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert data["threads"] == 1
    for side in ("tvm_default", "smartmem"):
        assert set(data[side]) == SIDE | {"latency_ms", "slow_share", "slow_kernels", "of_roofline"}
        assert data[side]["kernels"] == data[side]["kernels_in_graph"]
    assert data["speedup"] == pytest.approx(data["tvm_default"]["latency_ms"] / data["smartmem"]["latency_ms"])
    assert {name: each["runs"] for name, each in data["beside"].items()} == {"tvm-unscheduled": 3, "onnxruntime": 3}
    assert all(each["latency_ms"] > 0 for each in data["beside"].values())


def test_run_says_what_the_smaller_graph_brings(smartmem, model_path, monkeypatch):
    found = {"tvm-unscheduled": {"latency_ms": 1e4, "runs": 1}, "onnxruntime": {"error": "It is too old."}}
    asked = []

    def latencies(prepare, requests, inputs, runs, patience):
        asked.extend((requests, list(inputs), runs, patience))
        return found

    monkeypatch.setattr(stats, "latencies", latencies)
    outcome = smartmem("stats", model_path, "--run", "--repeat", 2, "--threads", 1)
    requests, inputs, runs, _ = asked
    assert [each["system"] for each in requests] == ["tvm-unscheduled", "onnxruntime"]
    assert (inputs, runs) == (["x"], 2)
    assert "latency of TVM's default pipeline, ms" in outcome.out and "10000.0" in outcome.out
    assert "No latency: It is too old." in outcome.out
    assert "is worth" in outcome.out and "on mobile GPUs" in outcome.out
    asked.clear()
    assert smartmem("stats", model_path, "--run", "--repeat", 2, "--no-schedule").code == 0
    assert [each["system"] for each in asked[0]] == ["onnxruntime"], "TVM's side has no schedules already"


def test_options_change_the_figures(smartmem, model_path):
    data = smartmem("stats", model_path, "--no-eliminate", "--no-fuse", "--json").data
    assert data["smartmem"]["layout_kernels"] > 0


def test_layout_transitions(smartmem, model_path):
    """TVM's copies count; ours are gone, and nothing is read with strides."""
    data = smartmem("stats", model_path, "--json").data
    ours, theirs = data["smartmem"]["layout_transitions"], data["tvm_default"]["layout_transitions"]
    assert theirs >= data["tvm_default"]["layout_kernels"] > 0
    assert ours == data["before_layouts"]["layout_transitions"] == 0


def test_a_device_of_another_machine(smartmem, model_path):
    """Nothing can be launched; what is in the graph can be counted."""
    data = smartmem("stats", model_path, "--target", "adreno-740", "--json").data
    ours = data["smartmem"]
    assert ours["kernels"] == ours["kernels_in_graph"] > 0
    outcome = smartmem("stats", model_path, "--target", "adreno-740", "--run")
    assert outcome.code == 2 and "another machine" in outcome.err


def test_table(smartmem, model_path):
    outcome = smartmem("stats", model_path)
    assert outcome.code == 0
    assert "TVM default" in outcome.out and "of which layout" in outcome.out
    assert "layout transitions" in outcome.out and "before layouts are chosen" in outcome.out
    assert "ONNX file: 7 nodes, 4 of them layout operators." in outcome.out


def test_the_file_is_read_once_for_all(smartmem, model_path, monkeypatch):
    reads = []
    load = onnx.load_model
    monkeypatch.setattr(onnx, "load_model", lambda *args, **kwargs: reads.append(args) or load(*args, **kwargs))
    assert smartmem("stats", model_path, "--json").code == 0
    assert len(reads) == 1


def test_what_tvm_says_of_its_own_graph_is_left_out(tmp_path):
    """A cube, of which TVM's C++ prints a warning; what else is on stderr stays."""
    nodes = [helper.make_node("Pow", ["x", "three"], ["y"])]
    tensors = [helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xy"]
    three = numpy_helper.from_array(np.array(3, "float32"), "three")
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [three])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "smartmem_tvm", "stats", str(tmp_path / "m.onnx"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    code = "import os\nfrom smartmem_tvm._tvm import without_warnings\nwith without_warnings():\n"
    code += "    os.write(2, b'[20:48:14] /a/b.cc:1: Warning: no\\nsomething\\n')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == "something\n"

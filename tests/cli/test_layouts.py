# SPDX-License-Identifier: Apache-2.0
"""``--layout``: measured by ``smartmem profile``, used by all that compile, shown by ``smartmem plan``."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 3, 10, 9)


@pytest.fixture
def norm_path(tmp_path):
    """A convolution and a softmax over its channels, whose order in memory can be chosen."""
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype("float32"), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Softmax", ["c"], ["s"], axis=1),
        helper.make_node("ReduceMean", ["s"], ["y"], axes=[2, 3]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 1, 1])
    graph = helper.make_graph(nodes, "norm", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    return tmp_path / "n.onnx"


@pytest.fixture
def profiled(smartmem, norm_path, store_path):
    """What the command said; of what it measured, all that moves a tensor is made faster."""
    found = smartmem("profile", norm_path, "--layout", "fluid", "--json").data
    records, now = [json.loads(line) for line in store_path.read_text().splitlines()], {}
    for record in records:
        now.setdefault(record["together"], record)  # of each session the kernel as it is comes first
    for record in records:
        record["seconds"] = 1.0 if record is now[record["together"]] else 0.1
    store_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return found


def test_measured_once(smartmem, norm_path, profiled):
    found = profiled["layouts"]
    assert found["kernels"] > 0 and found["measured"] > 0 and found["failed"] == found["open"] == 0
    again = smartmem("profile", norm_path, "--layout", "exact", "--json").data["layouts"]
    assert (again["forms"], again["measured"]) == (found["forms"], 0)
    assert smartmem("profile", norm_path, "--json").data["layouts"] is None
    text = smartmem("profile", norm_path, "--layout", "fluid").out
    assert f"{found['forms']} of {found['kernels']} kernels" in " ".join(text.split())


@pytest.mark.parametrize("planner", ["fluid", pytest.param("exact", marks=pytest.mark.device)])
def test_used_and_shown(smartmem, norm_path, profiled, tmp_path, planner):
    plan = smartmem("plan", norm_path, "--layout", planner, "--json").data["layouts"]
    *tensors, summary = plan
    assert summary["planner"] == planner and summary["moved"] > 0 and summary["seconds"] < summary["seconds_now"]
    assert {each["action"] for each in tensors} >= {"stored in this order"}
    text = smartmem("plan", norm_path, "--layout", planner).out
    assert "Order of dimensions" in text and f"Planner of layouts: {planner}" in text and " us as 0 1 2 3" in text

    folders = {name: tmp_path / name for name in ("plain", "planned")}
    assert smartmem("compile", norm_path, "-o", folders["plain"]).code == 0
    assert smartmem("compile", norm_path, "-o", folders["planned"], "--layout", planner).code == 0
    assert smartmem("plan", folders["planned"], "--json").data["layouts"] == plan
    assert not smartmem("plan", folders["plain"], "--json").data["layouts"]
    results = []
    for folder in folders.values():
        assert smartmem("run", folder, "--output", tmp_path / "y.npz").code == 0
        results.append(np.load(tmp_path / "y.npz")["y"])
    np.testing.assert_allclose(*results, rtol=1e-5)
    explained = smartmem("explain", norm_path, "--layout", planner).out
    assert (
        "dimensions in the order [0, 2, 3, 1]" in explained
        and "all kernels together take least with this order" in explained
    )
    assert smartmem("verify", norm_path, "--layout", planner).code == 0


def test_without_measurements_a_warning_and_no_other_code(smartmem, norm_path, store_path, tmp_path):
    outcome = smartmem("compile", norm_path, "-o", tmp_path / "out", "--layout", "fluid")
    assert outcome.code == 0 and "smartmem profile MODEL --layout fluid" in " ".join(outcome.err.split())


def test_smartmem_s_rule_on_a_cpu(smartmem, norm_path):
    found = smartmem("explain", norm_path, "--layout", "reduction-dimension").out
    assert "dimensions in the order" in found


def test_no_layout_after_all(smartmem, norm_path, profiled):
    """The last one of the switches counts."""
    assert not smartmem("plan", norm_path, "--layout", "fluid", "--no-layout", "--json").data["layouts"]


def test_a_planner_that_does_not_exist(smartmem, norm_path):
    found = smartmem("plan", norm_path, "--layout", "best")
    assert found.code == 2 and "invalid choice: 'best'" in found.err

# SPDX-License-Identifier: Apache-2.0
"""``--memory-budget``: a model runs within it, within another one, or says what the least is."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH = 4, 192


@pytest.fixture
def layers_path(tmp_path):
    """Four matmuls, each followed by a Relu."""
    draw, nodes, weights = np.random.default_rng(0), [], []
    for number in range(LAYERS):
        values = (draw.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype("float32")
        weights.append(numpy_helper.from_array(values, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"y{number}"]))
        nodes.append(helper.make_node("Relu", [f"y{number}"], [f"x{number + 1}"]))
    ends = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [3, WIDTH]) for n in (0, LAYERS)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    path = tmp_path / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.fixture
def folder(smartmem, layers_path, tmp_path):
    assert smartmem("compile", layers_path, "-o", tmp_path / "out", "--memory-budget", "400kB").code == 0
    return tmp_path / "out"


def test_a_folder_within_its_budget_and_another(smartmem, layers_path, folder, tmp_path):
    outputs = []
    for number, options in enumerate([(), ("--memory-budget", "250kB"), ("--memory-budget", "1GB")]):
        file = tmp_path / f"{number}.npz"
        assert smartmem("run", folder, "--output", file, *options).code == 0
        outputs.append(np.load(file)["x4"])
    assert smartmem("run", layers_path, "--output", tmp_path / "plain.npz").code == 0
    for each in outputs:
        np.testing.assert_array_equal(each, np.load(tmp_path / "plain.npz")["x4"])


def test_what_is_too_small_says_what_is_not(smartmem, layers_path, folder, tmp_path):
    outcome = smartmem("compile", layers_path, "-o", tmp_path / "other", "--memory-budget", "10kB")
    text = " ".join(outcome.err.split())
    assert outcome.code == 2 and "matmul" in text and "the least that it runs within is 0.0" in text
    assert not (tmp_path / "other").exists()
    least = text.rstrip(".").split()[-2]
    assert smartmem("verify", layers_path, "--memory-budget", f"{least}MB").code == 0
    assert smartmem("run", folder, "--memory-budget", "1B").code == 2


@pytest.mark.parametrize("size", ["12XB", "-1MB", "0"])
def test_what_is_no_size(smartmem, layers_path, tmp_path, size):
    outcome = smartmem("compile", layers_path, "-o", tmp_path / "out", f"--memory-budget={size}")
    assert outcome.code == 2 and "is no memory size" in outcome.err


def test_not_on_a_gpu(smartmem, layers_path, tmp_path):
    outcome = smartmem("compile", layers_path, "-o", tmp_path / "out", "--target", "cuda", "--memory-budget", "1MB")
    assert outcome.code == 2 and "memory budget" in outcome.err


def test_pictures_and_tables(smartmem, layers_path, folder, tmp_path):
    assert smartmem("run", folder, "--timeline", tmp_path / "times.svg").code == 0
    picture = (tmp_path / "times.svg").read_text(encoding="utf-8")
    assert "reading thread" in picture and "computing threads" in picture
    outcome = smartmem("plan", folder, "-o", tmp_path / "plan.svg", "--json")
    assert outcome.code == 0 and {each["kind"] for each in outcome.data["tensors"]} >= {"weight", "activation"}
    assert "weight" in (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert outcome.data["planned_bytes"] <= 400_000
    assert smartmem("plan", layers_path, "--memory-budget", "400kB", "--json").data["planned_bytes"] <= 400_000
    assert smartmem("inspect", folder).code == 0
    assert smartmem("report", folder, "-o", tmp_path / "page.html").code == 0
    cut = smartmem("explain", layers_path, "--memory-budget", "250kB").out
    assert "SliceWeights" in cut and "cut into" in cut


def test_no_timeline_without_a_budget(smartmem, layers_path, tmp_path):
    outcome = smartmem("run", layers_path, "--timeline", tmp_path / "times.svg")
    assert outcome.code == 2 and "memory budget" in outcome.err and not (tmp_path / "times.svg").exists()


def test_not_over_rpc(smartmem, folder):
    outcome = smartmem("measure", folder, "--tracker", "localhost:1", "--key", "phone")
    assert outcome.code == 2 and "was compiled with a memory budget" in outcome.err


def test_a_manifest_that_was_changed_is_refused(smartmem, folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["stream"]["uses"][0]["weight"] = "first"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert smartmem("run", folder).code == 2

# SPDX-License-Identifier: Apache-2.0
"""``--weights`` and ``--float``: what is compiled, what `explain` says, and what `verify` compares with."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import tirx

from smartmem_tvm.deploy.export import load
from smartmem_tvm.schedule.cpu.gemm.coded_nest import CodedNest

ROUNDED = "y, int4:16"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Two products with large weights and what is between, as a file."""
    random = np.random.default_rng(0)
    stored = [random.standard_normal(shape).astype("float32") / 8 for shape in ((96, 64), (64, 80))]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"], "second"),
    ]
    values = [helper.make_tensor_value_info(name, 1, [2, size]) for name, size in (("x", 96), ("y", 80))]
    weights = [numpy_helper.from_array(array, name) for name, array in zip("ab", stored)]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], weights)
    file = tmp_path_factory.mktemp("weights") / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)
    return file


def test_a_folder_with_rounded_weights_is_small_and_runs(smartmem, path, tmp_path):
    sizes, x, results = {}, np.ones((2, 96), "float32"), {}
    for weights in ("float", "int8", "int4"):
        outcome = smartmem("compile", path, "-o", tmp_path / weights, "--weights", weights, "--json")
        assert outcome.code == 0, outcome.err
        sizes[weights] = outcome.data["manifest"]["memory_bytes"]["weights"]
        (results[weights],) = load(tmp_path / weights).run(x)
    assert sizes["int8"] < 0.4 * sizes["float"] and sizes["int4"] < 0.3 * sizes["float"]
    error = {name: np.linalg.norm(y - results["float"]) for name, y in results.items()}
    assert 0 < error["int8"] < error["int4"] < 0.3 * np.linalg.norm(results["float"])


def test_explain_names_the_error_and_what_stays_float(smartmem, path):
    outcome = smartmem("explain", path, "--weights", "int4", "--float", "first", "--all", "--json")
    assert outcome.code == 0, outcome.err
    found = [each for each in outcome.data["decisions"] if each["pass"] == "RoundWeights"]
    assert [each["action"] for each in found] == ["kept", "rounded to 4 bits"] and 0 < found[1]["error"] < 0.2


def test_verify_compares_with_the_rounded_weights(smartmem, path):
    outcome = smartmem("verify", path, "--weights", "int4:16", "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data["outputs"]) == {"y", ROUNDED} and data["rtol"] == 1e-4
    assert data["outputs"][ROUNDED]["max_rel_err"] < 1e-5 < 0.01 < data["rounding"]["y"] < 0.3
    assert "Rounding changes y by" in smartmem("verify", path, "--weights", "int8").out


def test_verify_notices_a_wrong_kernel(smartmem, path, monkeypatch):
    monkeypatch.setattr(CodedNest, "_zero", lambda *_: tirx.const(7, "float32"))  # in the place of eight
    outcome = smartmem("verify", path, "--weights", "int4:16", "--json")
    assert outcome.code == 1
    assert outcome.data["outputs"]["y"]["ok"] and not outcome.data["outputs"][ROUNDED]["ok"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--weights", "int5"], "weights 'int5' do not exist"),
        (["--weights", "int4:12"], "a multiple of 8"),
        (["--weights", "int4", "--float", "third"], "No product is called 'third'"),
    ],
)
def test_what_is_refused(smartmem, path, options, why):
    outcome = smartmem("explain", path, *options)
    assert outcome.code == 2 and why in " ".join(outcome.err.split())

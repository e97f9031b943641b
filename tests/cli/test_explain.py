# SPDX-License-Identifier: Apache-2.0
"""``smartmem explain``: every layout operator and every kernel is accounted for."""

import onnx
import pytest
from onnx import helper
from tvm import relax

from helpers import module
from smartmem_tvm.report import explain


@pytest.fixture
def explained(smartmem, model_path):
    return smartmem("explain", model_path, "--json").data


def test_layout_operators_say_where_they_went(explained):
    operators = explained["layout_operators"]
    assert len(operators) == 4
    kernels = {each["result"]: each for each in explained["kernels"]}
    for each in operators:
        assert each["action"] == "eliminated"
        assert "->" in each["map"]
        assert each["into"] and all(each["operator"] in kernels[result]["views"] for result in each["into"])


def test_kernels_say_what_they_compute(explained):
    assert all(each["members"] for each in explained["kernels"])
    computed = " ".join(member for each in explained["kernels"] for member in each["members"])
    assert computed.count("matmul") == 2 and computed.count("softmax") == 1


def test_kept_operator_says_why(smartmem, tmp_path):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"], name="turn", perm=[1, 0])],
        "turn",
        [value("x", 1, [2, 3])],
        [value("y", 1, [3, 2])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "turn.onnx"
    )
    outcome = smartmem("explain", tmp_path / "turn.onnx")
    assert outcome.code == 0, outcome.err
    assert "kept: it is a result of the function" in outcome.out
    assert "0 of 1 layout operators eliminated; 1 kernels." in outcome.out


def test_table(smartmem, model_path):
    outcome = smartmem("explain", model_path)
    assert outcome.code == 0
    assert "eliminated into" in outcome.out and "4 of 4 layout operators eliminated" in outcome.out


def test_nothing_is_cut_off_in_a_narrow_table(smartmem, model_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert "…" not in smartmem("explain", model_path).out


def test_filter(smartmem, model_path, explained):
    found = smartmem("explain", model_path, "--op", "SPLIT_heads", "--json").data
    assert len(found["layout_operators"]) == 1 < len(explained["layout_operators"])
    assert 1 <= len(found["kernels"]) < len(explained["kernels"])


def test_filter_without_a_match(smartmem, model_path):
    outcome = smartmem("explain", model_path, "--op", "zzz")
    assert outcome.code == 2
    assert "'zzz'" in outcome.err


def test_module_that_no_pass_has_seen():
    found = explain(module(relax.op.nn.relu, (2, 3)))
    assert found == {"layout_operators": [], "kernels": [], "decisions": []}

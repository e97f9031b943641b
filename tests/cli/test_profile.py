# SPDX-License-Identifier: Apache-2.0
"""``smartmem profile``: a store that later compilations find."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.tune import host

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from decoder_network import CONCAT, Decoder

KEYS = {
    "model", "questions", "answered_fused", "answered_kept", "unanswered", "measured_now", "failed", "sweeps",
    "seconds", "kernels", "store", "target", "cpu", "threads", "kernels_measured", "kernels_in_store", "damaged_lines",
    "device", "textures", "layouts", "servers",
}  # fmt: skip


@pytest.fixture
def gated_path(tmp_path):
    """A matmul whose result is scaled row by row: Many-to-Many, then One-to-Many, which is a yellow cell."""
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((16, 24)).astype("float32"), "weight")
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["xw"], name="project"),
        helper.make_node("Mul", ["xw", "gate"], ["y"], name="scale"),
    ]
    values = {"x": [8, 16], "gate": [8, 1], "y": [8, 24]}
    x, gate, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in values.items())
    graph = helper.make_graph(nodes, "gated", [x, gate], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "g.onnx")
    return tmp_path / "g.onnx"


def test_profile_then_compile(smartmem, gated_path, store_path):
    outcome = smartmem("profile", gated_path, "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data) == KEYS
    assert data["questions"] == data["measured_now"] == 1
    assert data["answered_fused"] + data["answered_kept"] == 1
    assert data["unanswered"] == data["failed"] == data["damaged_lines"] == 0
    assert data["device"] is None and data["textures"] is None
    assert data["kernels"] == {"cost_model": 1, "profile": 1 if data["answered_fused"] else 2}
    assert data["store"] == str(store_path)
    assert data["kernels_measured"] == data["kernels_in_store"] == len(store_path.read_text().splitlines()) == 3

    again = smartmem("profile", gated_path, "--json").data
    assert (again["questions"], again["measured_now"], again["kernels_measured"]) == (1, 0, 0)
    decided = [each["decided_by"] for each in smartmem("explain", gated_path, "--json").data["decisions"]]
    assert any(by.startswith("profile: ") for by in decided)


@pytest.fixture
def answers(smartmem, gated_path, store_path):
    """Rewrite the store so that the parts are faster."""
    assert smartmem("profile", gated_path).code == 0
    records = [json.loads(line) for line in store_path.read_text().splitlines()]
    fused, *parts = records  # of a question, the fused kernel is measured first
    fused["seconds"] = 1.0
    for part in parts:
        part["seconds"] = 0.1
    store_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return store_path


def kernels(outcome) -> int:
    assert outcome.code == 0, outcome.err
    return outcome.data["smartmem"]["kernels"]


def test_commands_find_and_obey_the_store(smartmem, gated_path, answers, tmp_path, monkeypatch):
    assert kernels(smartmem("stats", gated_path, "--json")) == 2
    assert kernels(smartmem("stats", gated_path, "--no-profiles", "--json")) == 1
    monkeypatch.setenv(host.STORE_VARIABLE, "")
    assert kernels(smartmem("stats", gated_path, "--json")) == 1
    assert kernels(smartmem("stats", gated_path, "--profiles", answers, "--json")) == 2


def test_explain_says_who_decided(smartmem, gated_path, answers):
    found = smartmem("explain", gated_path)
    assert found.code == 0, found.err
    assert re.search(r"profile: 1000000\S* us fused", found.out)
    modelled = smartmem("explain", gated_path, "--no-profiles").out
    assert "cost model" in modelled and "profile:" not in modelled


def test_people_are_told_the_same(smartmem, gated_path, store_path):
    outcome = smartmem("profile", gated_path)
    assert outcome.code == 0, outcome.err
    assert "questions of the passes: 1, measured now: 1" in outcome.out
    assert "Kernels of the model: 1 by the cost model alone" in outcome.out
    assert str(store_path) in outcome.out


def test_a_model_without_questions_writes_nothing(smartmem, model_path, store_path):
    data = smartmem("profile", model_path, "--json").data
    assert (data["questions"], data["kernels_measured"]) == (0, 0)
    assert data["kernels"]["cost_model"] == data["kernels"]["profile"]
    assert not store_path.exists()


def test_store_option(smartmem, gated_path, store_path, tmp_path):
    assert smartmem("profile", gated_path, "--store", tmp_path / "mine.jsonl").code == 0
    assert (tmp_path / "mine.jsonl").exists() and not store_path.exists()


@pytest.mark.parametrize(("load", "busy"), [(0.3, False), (64.0, True)])
def test_a_busy_machine_is_pointed_out(smartmem, model_path, store_path, monkeypatch, load, busy):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    outcome = smartmem("profile", model_path)
    assert outcome.code == 0
    assert ("this machine is busy" in outcome.err) == busy


def test_a_budget_may_be_too_short(smartmem, gated_path, store_path):
    outcome = smartmem("profile", gated_path, "--budget", 1e-9)
    assert outcome.code == 0
    assert "run the command again to go on" in outcome.out


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "soon"])
def test_a_budget_is_a_positive_number(smartmem, model_path, budget):
    assert smartmem("profile", model_path, "--budget", budget).code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["profile", "--target", '{"kind": "llvm", "mcpu": "pentium4"}'], "run the command on the machine"),
        (["stats", "--profiles", "missing.jsonl"], "missing.jsonl does not exist; `smartmem profile"),
        (["stats", "--profiles", "."], "Profile store . cannot be read (Is a directory)"),
        (["profile", "--store", "."], "Profile store . cannot be read (Is a directory)"),
    ],
)
def test_bad_input(smartmem, model_path, store_path, arguments, words):
    command, *rest = arguments
    outcome = smartmem(command, model_path, *rest)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err and outcome.err.count("\n") == 1


def test_no_store_at_all(smartmem, model_path, monkeypatch):
    monkeypatch.setenv(host.STORE_VARIABLE, "")
    outcome = smartmem("profile", model_path)
    assert outcome.code == 2
    assert "name one with --profiles FILE" in outcome.err


def test_a_model_that_keeps_its_caches(smartmem, store_path, tmp_path):
    """Kernels are measured one by one, each as a function of its inputs; caches that grow get their rows."""
    onnx.save(Decoder(layers=1, form=CONCAT).model(), tmp_path / "model.onnx")
    asked = smartmem("profile", tmp_path / "model.onnx", "--cache", "auto:16", "--json")
    assert asked.code == 0, asked.err
    assert asked.data["kernels"]["profile"] > 0

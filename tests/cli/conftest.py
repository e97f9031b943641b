# SPDX-License-Identifier: Apache-2.0
"""Tiny ONNX files, and the command line called in this process."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.cli import main


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Tables do not depend on the terminal that the tests are started from."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch):
    """Decisions do not depend on what was measured on the machine that the tests run on."""
    monkeypatch.setenv("SMARTMEM_PROFILES", "")
    monkeypatch.setenv("SMARTMEM_RECORDS", "")


@dataclass(frozen=True)
class Outcome:
    """What one call of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict:
        """The one JSON object on stdout (anything more or less fails)."""
        return json.loads(self.out)


def attention_model(batch=2) -> onnx.ModelProto:
    """softmax(heads(x W)): two matmuls' worth of work, three layout operators, one float input ``x``."""
    random = np.random.default_rng(1)
    weight = random.standard_normal((8, 8)).astype("float32")
    constants = [
        numpy_helper.from_array(weight, "weight"),
        numpy_helper.from_array(np.array([0, 4, 2, 4], "int64"), "split"),
        numpy_helper.from_array(np.array([0, 4, 8], "int64"), "join"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["xw"], name="project"),
        helper.make_node("Reshape", ["xw", "split"], ["split_heads"], name="split_heads"),
        helper.make_node("Transpose", ["split_heads"], ["heads"], name="to_heads", perm=[0, 2, 1, 3]),
        helper.make_node("Softmax", ["heads"], ["weights"], name="soft", axis=-1),
        helper.make_node("Transpose", ["weights"], ["back"], name="from_heads", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "join"], ["joined"], name="join_heads"),
        helper.make_node("MatMul", ["joined", "weight"], ["y"], name="out"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4, 8])
    return make_model(nodes, [x], [y], constants)


def make_model(nodes, inputs, outputs, constants=()) -> onnx.ModelProto:
    """A checked model of opset 17."""
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def smartmem(capsys):
    """Return the function (arguments) -> Outcome that runs the command in this process."""

    def call(*arguments) -> Outcome:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    """The attention model with fixed sizes, as a file."""
    path = tmp_path_factory.mktemp("models") / "attention.onnx"
    onnx.save(attention_model(), path)
    return path


@pytest.fixture(scope="session")
def symbolic_path(tmp_path_factory) -> Path:
    """The same with an open batch dimension."""
    path = tmp_path_factory.mktemp("models") / "symbolic.onnx"
    onnx.save(attention_model(batch="batch"), path)
    return path


@pytest.fixture(scope="session")
def compiled_folder(model_path, tmp_path_factory) -> Path:
    """The attention model, compiled into a folder that tests only read."""
    folder = tmp_path_factory.mktemp("compiled") / "attention"
    assert main(["compile", str(model_path), "-o", str(folder)]) == 0
    return folder

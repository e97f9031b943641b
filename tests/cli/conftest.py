# SPDX-License-Identifier: Apache-2.0
"""Tiny ONNX files, and the command line called in this process."""

from pathlib import Path

import onnx
import pytest

from attention_model import attention_model
from command_outcome import Outcome
from smartmem_tvm.cli import main
from smartmem_tvm.tune import host


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Tables do not depend on the terminal that the tests are started from."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch):
    """Decisions do not depend on what was measured on the machine that the tests run on."""
    monkeypatch.setenv("SMARTMEM_PROFILES", "")
    monkeypatch.setenv("SMARTMEM_RECORDS", "")


@pytest.fixture
def store_path(tmp_path, monkeypatch):
    """The default store, which does not exist yet."""
    path = tmp_path / "logs" / "cpu.jsonl"
    monkeypatch.setenv(host.STORE_VARIABLE, str(path))
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    return path


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

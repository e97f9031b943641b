# SPDX-License-Identifier: Apache-2.0
"""The same model, options and records: the same modules, library, weights and manifest in every process, byte for byte.

Kernels for a GPU are in the library as source, so that its bytes hold them too.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from attention_model import attention_model
from small_network import network
from smartmem_tvm.cli import main
from smartmem_tvm.tables.suite import SUITES

MODELS = Path(__file__).resolve().parents[2] / "models"
TARGETS = ("cpu", "adreno-740", "opencl", "cuda")


def command(model: Path, out: Path, target: str, *more: str) -> list[str]:
    return ["compile", str(model), "-o", f"{out}/{target}", "--target", target, "--dump-dir", f"{out}/dump", *more]


def sums(folder: Path) -> dict[str, str]:
    """Of each file below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def in_new_process(commands: list[list[str]], seed: str) -> None:
    """Run the commands where sets and dictionaries have another order."""
    text = f"import sys\nfrom smartmem_tvm.cli import main\nsys.exit(max(map(main, {commands!r})))"
    subprocess.run([sys.executable, "-c", text], env={**os.environ, "PYTHONHASHSEED": seed}, check=True)


@pytest.fixture(autouse=True)
def only_what_is_given(monkeypatch):
    monkeypatch.setenv("SMARTMEM_PROFILES", "")
    monkeypatch.setenv("SMARTMEM_RECORDS", "")


def test_a_small_model_is_the_same_in_this_process_and_in_a_new_one(tmp_path):
    onnx.save(attention_model(), tmp_path / "m.onnx")
    mine, other = tmp_path / "mine", tmp_path / "other"
    assert main(command(tmp_path / "m.onnx", mine, "cpu")) == 0
    in_new_process([command(tmp_path / "m.onnx", other, "cpu")], "1")
    assert len(sums(mine)) > 20 and sums(mine) == sums(other)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["small", *(entry.file for entry in SUITES["gpu"])])
def test_networks_are_the_same_in_two_processes(name, target, tmp_path):
    model = MODELS / f"{name}.onnx"
    if name == "small":
        model = tmp_path / "small.onnx"
        onnx.save(network(), model)
    for seed in "12":
        in_new_process([command(model, tmp_path / seed, target)], seed)
    assert sums(tmp_path / "1") == sums(tmp_path / "2")


@pytest.mark.slow
def test_records_give_the_same_library_in_two_processes(tmp_path):
    model, records = tmp_path / "small.onnx", str(tmp_path / "records.jsonl")
    onnx.save(network(), model)
    assert main(["tune", str(model), "-o", records, "--trials", "16"]) == 0
    for seed in "12":
        in_new_process([command(model, tmp_path / seed, "cpu", "--records", records)], seed)
    assert sums(tmp_path / "1") == sums(tmp_path / "2")

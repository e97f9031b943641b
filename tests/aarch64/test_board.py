# SPDX-License-Identifier: Apache-2.0
"""From this machine to a board and back: compiled here, run there, the same results."""

import json
import shutil

import onnx
import pytest

from small_network import network
from smartmem_tvm.cli import main

TARGET = json.dumps({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2})


def call(capsys, *arguments: str) -> tuple[int, dict]:
    """A command's exit code, and what it prints as JSON."""
    code = main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return code, json.loads(printed.out)


@pytest.fixture
def model(tmp_path):
    onnx.save(network(), tmp_path / "small.onnx")
    return str(tmp_path / "small.onnx")


@pytest.mark.parametrize("compiler", ["debian", "zig"])
def test_compiled_here_and_measured_there(model, board, compiler, tmp_path, monkeypatch, capsys):
    if compiler == "zig":
        monkeypatch.setenv("PATH", "")
    assert bool(shutil.which("aarch64-linux-gnu-g++")) == (compiler == "debian")
    folder = tmp_path / "out"
    code, compiled = call(capsys, "compile", model, "--target", TARGET, "-o", str(folder))
    assert (code, compiled["manifest"]["library"], compiled["manifest"]["link"]) == (0, "lib.so", "")
    assert compiled["manifest"]["weights"]

    code, measured = call(capsys, "measure", str(folder), *board, "--runs", "5", "--replays", "3")
    assert code == 0
    assert measured["device"]["server"]["machine"] == "aarch64"
    assert measured["correct"] and measured["deterministic"]
    assert measured["layout_share"] == 0
    assert sum(each["launches"] for each in measured["kernels"]) == compiled["manifest"]["kernels"]
    assert measured["latency_ms"]["runs"] == 5 and measured["latency_ms"]["min"] > 0
    (output,) = measured["outputs"].values()
    assert output["max_rel_err"] < 1e-5
    with capsys.disabled():
        print(f"\n{compiler}: {measured['latency_ms']['median']:.1f} ms under qemu, error {output['max_rel_err']:.1e}")


def test_tuned_there_compiled_with_that_and_measured(model, board, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SMARTMEM_PROFILES", "")
    records, folder, aim = str(tmp_path / "found.jsonl"), str(tmp_path / "out"), ("--target", TARGET)
    search = ("--trials", "4", "--minutes", "1", "-o", records)
    code, tuned = call(capsys, "tune", model, *aim, *board, *search)
    kernels = tuned["kernels"]
    assert code == 0 and sum(each["tried_now"] for each in kernels) >= 4
    assert [each for each in kernels if each["failed"] or each["machine_failed"] or each["wrong"]] == []
    code, compiled = call(capsys, "compile", model, *aim, "--records", records, "-o", folder)
    assert code == 0 and compiled["manifest"]["tuning"]["tuned"] == sum(each["gain"] > 1 for each in kernels)
    code, measured = call(capsys, "measure", folder, *board, "--runs", "3", "--replays", "2")
    assert code == 0 and measured["correct"] and measured["deterministic"]
    with capsys.disabled():
        print(f"\n{sum(each['tried_now'] for each in kernels)} candidates tried, gain {tuned['gain']:.2f} under qemu")

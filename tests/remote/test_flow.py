# SPDX-License-Identifier: Apache-2.0
"""The whole way, with whole networks: tuned, compiled and measured on a device of another process."""

import json
import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from rpc_processes import device, tracker
from smartmem_tvm.cli import main

MODELS = Path(__file__).resolve().parents[2] / "models"
NETWORKS = ("resnext50", "swin_t")
# Candidates for both networks, each of whose kernels may have 64: a CPU takes long to compile what is for a GPU.
ENOUGH = {"cpu": 16, "opencl": 8}


@pytest.mark.slow
def test_two_networks_tuned_compiled_measured_and_verified_on_two_devices(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SMARTMEM_PROFILES", "")
    with tracker(tmp_path) as known, device(tmp_path, known, "board"):
        board = ("--tracker", known.address, "--key", "board")
        for target in ENOUGH:
            _there_and_back(target, board, tmp_path, capsys)


def _there_and_back(target, board, tmp_path, capsys):
    files, aim = [str(MODELS / f"{name}.onnx") for name in NETWORKS], ("--target", target)
    records = ("--records", str(tmp_path / f"{target}.jsonl"))
    search = ("--effort", "rapid", "--minutes", "30", "--trials", "64", "-o", records[1])
    with _stopped_after(ENOUGH[target], Path(records[1])):
        tuned = _call(capsys, "tune", *files, *aim, *board, *search, code=130)["kernels"]
    assert sum(kernel["tried_now"] for kernel in tuned) >= ENOUGH[target]
    assert not any(kernel["failed"] or kernel["machine_failed"] or kernel["wrong"] for kernel in tuned)
    for name, file in zip(NETWORKS, files, strict=True):
        folder = str(tmp_path / name)
        compiled = _call(capsys, "compile", file, *aim, *records, "-o", folder)["manifest"]
        faster = [kernel for kernel in tuned if kernel["gain"] > 1 and name in kernel["models"]]
        assert compiled["tuning"]["tuned"] == len(faster)
        measured = _call(capsys, "measure", folder, *board, "--runs", "3", "--warm-up", "1", "--replays", "2")
        assert measured["correct"] and measured["deterministic"] and measured["layout_share"] == 0
        assert sum(each["launches"] for each in measured["kernels"]) == compiled["kernels"]
        assert _call(capsys, "verify", file, *aim, *records)["ok"]


@contextmanager
def _stopped_after(count, records):
    """Ctrl-C when so many candidates are on record, however long a busy machine takes for that."""
    over = threading.Event()

    def watch():
        while not over.wait(0.2):
            if records.exists() and records.read_text().count('"trace"') >= count:
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _call(capsys, *arguments, code=0):
    """What a command prints as JSON."""
    found = main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert found == code, printed.err
    return json.loads(printed.out)

# SPDX-License-Identifier: Apache-2.0
"""Processes that compile, tune and measure into the same files and folders at once."""

import multiprocessing
import os
import time
from pathlib import Path

import onnx
import pytest

from attention_model import attention_model
from fuzz_readers import seeds
from load.sizes import PROCESSES, SECONDS
from smartmem_tvm.cli import main
from smartmem_tvm.deploy.export import load
from smartmem_tvm.tune import json_lines
from smartmem_tvm.tune.profile_store import ProfileStore
from smartmem_tvm.tune.record_lines import check


def work(folder: Path, number: int, until: float) -> None:
    """Tune a model of its own, measure and compile, over and over; note what was written."""
    os.environ["TVM_NUM_THREADS"] = "1"
    model = folder / f"{number}.onnx"
    rounds = 0
    while time.monotonic() < until or not rounds:
        onnx.save(attention_model(1 + number * 100 + rounds), model)
        records = ["--records", str(folder / "all.records.jsonl")]
        tuned = ["tune", str(model), "-o", str(folder / "all.records.jsonl"), "--trials", "8", "--threads", "1"]
        assert main(tuned) == 0
        store = ProfileStore(folder / "profiles.jsonl", seeds.TARGET, 1)
        for part in range(20):
            store.add(seeds.kernel(4)["main"], 1e-6 * (part + 1), f"{number} {rounds} {part}")
        assert main(["compile", str(model), "-o", str(folder / f"out{number % 3}"), *records, "--no-profiles"]) == 0
        rounds += 1
    (folder / f"rounds{number}").write_text(str(rounds))


@pytest.mark.slow
def test_no_record_is_lost(tmp_path):
    context, until = multiprocessing.get_context("fork"), time.monotonic() + SECONDS
    processes = [context.Process(target=work, args=(tmp_path, number, until)) for number in range(PROCESSES)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0] * PROCESSES
    rounds = [int((tmp_path / f"rounds{number}").read_text()) for number in range(PROCESSES)]
    lines, damaged = json_lines.read(tmp_path / "profiles.jsonl")
    sessions = {
        f"{number} {at} {part}" for number, count in enumerate(rounds) for at in range(count) for part in range(20)
    }
    assert not damaged and {line["together"] for line in lines} == sessions
    found = check(tmp_path / "all.records.jsonl")
    assert not found.problems and found.counts["runs"] == sum(rounds), found
    assert found.counts["candidates"] >= sum(rounds)
    for number in range(3):
        assert load(tmp_path / f"out{number}").inputs

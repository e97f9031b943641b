# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed at any moment, and what they leave."""

import multiprocessing
import random
import shutil
import signal
import time

import numpy as np
import onnx
import pytest

from attention_model import attention_model
from load.sizes import KILLS
from smartmem_tvm.cli import main
from smartmem_tvm.deploy.export import load
from smartmem_tvm.tune import json_lines

CONTEXT = multiprocessing.get_context("fork")


def compile_model(model, folder) -> None:
    raise SystemExit(main(["compile", str(model), "-o", str(folder), "--no-tuned", "--no-profiles"]))


def seconds_of(model, folder) -> float:
    begin = time.monotonic()
    process = CONTEXT.Process(target=compile_model, args=(model, folder))
    process.start()
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - begin


@pytest.mark.slow
def test_a_compiled_model_is_the_old_one_or_the_new_one(tmp_path):
    """The two differ in the size of a batch."""
    generator, out = random.Random(0), tmp_path / "out"
    models = {batch: tmp_path / f"{batch}.onnx" for batch in (2, 3)}
    for batch, path in models.items():
        onnx.save(attention_model(batch), path)
    whole = max(seconds_of(path, out) for path in models.values())
    there, found = 3, set()
    for number in range(KILLS):
        process = CONTEXT.Process(target=compile_model, args=(models[2 + number % 2], out))
        process.start()
        # Half of them near the end, where the folder is written.
        time.sleep(whole * (generator.uniform(0.7, 1.1) if number % 2 else generator.uniform(0, 1.1)))
        process.kill()
        process.join()
        model = load(out)
        ((shape, _),) = model.inputs.values()
        assert shape[0] in (there, 2 + number % 2)
        there = shape[0]
        found.add((there, process.exitcode))
        assert np.isfinite(model.run(np.zeros(shape, "float32"))[0]).all()
        for left in tmp_path.glob(".out.*"):
            shutil.rmtree(left)
    assert {code for _, code in found} >= {-signal.SIGKILL}


def add(path, first) -> None:
    for number in range(first, first + 10**6):
        json_lines.append(path, [{"n": number, "text": "x" * (number % 5000)}])


@pytest.mark.slow
def test_records_that_were_written_stay(tmp_path):
    """Whoever adds them is killed; a line that was begun is mended, and none before it is lost."""
    generator, path = random.Random(0), tmp_path / "records.jsonl"
    known: set[int] = set()
    for number in range(KILLS):
        process = CONTEXT.Process(target=add, args=(path, number * 10**6))
        process.start()
        time.sleep(generator.uniform(0.01, 0.2))
        process.kill()
        process.join()
        if path.exists():
            json_lines.mend_end(path)
            lines, damaged = json_lines.read(path)
            numbers = {line["n"] for line in lines}
            assert not damaged and numbers >= known
            known = numbers
    for number in range(KILLS):
        mine = sorted(each for each in known if each // 10**6 == number)
        assert mine == list(range(number * 10**6, number * 10**6 + len(mine)))
    assert len(known) > KILLS

# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune``, and models compiled with what it found."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.cli import tune
from smartmem_tvm.deploy.target import parse_target
from smartmem_tvm.deploy.tuned import default_records
from smartmem_tvm.tune.campaign import EFFORTS
from smartmem_tvm.tune.metaschedule import STRATEGIES

TRIALS = ("--effort", "rapid", "--trials", 8, "--threads", 2)


@pytest.fixture(scope="module")
def two_kernels(tmp_path_factory) -> Path:
    """Two matmuls with a row of the first one's sums between them, so that they stay apart."""
    random = np.random.default_rng(0)
    shapes = {"first": (64, 96), "second": (96, 80)}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype("float32"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 80])
    graph = helper.make_graph(nodes, "two", [x], [y], weights)
    path = tmp_path_factory.mktemp("two") / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_its_winners_are_compiled(two_kernels, smartmem, tmp_path):
    records, plot = tmp_path / "found.jsonl", tmp_path / "found.svg"
    first = _interrupted(two_kernels, records)
    assert first["stopped"] and [kernel["tried_now"] for kernel in first["kernels"]] == [8, 0]
    whole = records.read_bytes()
    records.write_bytes(whole + b'{"torn')
    second = smartmem("tune", two_kernels, *TRIALS, "-o", records, "--plot", plot, "--json")
    assert second.code == 0 and "its last line was torn; the 6 bytes of it were removed" in second.err
    assert {kernel["tried_now"] for kernel in second.data["kernels"]} == {0, 8}
    assert all(k["trials"] == 8 and k["machine_failed"] == k["wrong"] == 0 for k in second.data["kernels"])
    assert records.read_bytes().startswith(whole) and plot.stat().st_size > 1000
    run = json.loads(whole.splitlines()[0])
    assert {"date", "command", "device", "driver", "strategy", "threads", "tvm"} <= set(run)
    assert smartmem("records", "check", records).code == 0
    _make_winners_count(records)
    outputs = {}
    for name, options in {"tuned": ["--records", records], "plain": ["--no-tuned"]}.items():
        result = smartmem("run", two_kernels, *options, "--threads", 2, "--output", tmp_path / f"{name}.npz")
        assert result.code == 0, result.err
        outputs[name] = np.load(tmp_path / f"{name}.npz")["y"]
    np.testing.assert_allclose(outputs["tuned"], outputs["plain"], rtol=1e-4, atol=1e-3)


def _interrupted(model: Path, records: Path) -> dict:
    """The command, sent Ctrl-C as soon as there is a record."""
    command = [sys.executable, "-m", "smartmem_tvm", "tune", model, *TRIALS, "-o", records, "--json"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not records.exists() and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "ending after this batch" in err, err
    return json.loads(out)


def _make_winners_count(records: Path) -> None:
    """Which kernel is faster is the machine's business; here both winners shall be."""
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len({line["workload"] for line in lines if "winner" in line}) == 2
    lines = [{**line, "untuned": 2 * line["seconds"]} if "winner" in line else line for line in lines]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "adreno-740"], "is the device of another machine"),
        (["--target", "opencl-texture"], "keeps tensors in textures, which kernels are not tuned for"),
        (["-o", "new.jsonl", "--plot", "picture.txt"], "picture.txt must end with one of"),
        (["--trials", "0"], "0 is not a positive number"),
        (["--minutes", "-1"], "-1 is not a positive number of minutes"),
        (["--seed", "-1"], "-1 is negative"),
        (["--strategy", "luck"], "invalid choice: 'luck'"),
        (["-o", "."], "Records . are a folder"),
        ([], "SMARTMEM_RECORDS is empty"),
    ],
)
def test_bad_options_are_refused(options, message, smartmem, model_path):
    result = smartmem("tune", model_path, *options)
    assert result.code == 2 and message in result.err and not result.out


def test_records_that_are_not_there_are_named(smartmem, model_path, tmp_path):
    result = smartmem("compile", model_path, "-o", tmp_path / "out", "--records", "missing.jsonl")
    assert (
        result.code == 2 and "Records missing.jsonl do not exist; `smartmem tune MODEL -o missing.jsonl`" in result.err
    )


def test_choices_are_those_of_the_package():
    assert set(tune.EFFORTS) == set(EFFORTS) and set(tune.STRATEGIES) == set(STRATEGIES)


def test_the_file_is_named_after_device_target_and_version(monkeypatch):
    monkeypatch.delenv("SMARTMEM_RECORDS", raising=False)
    name = default_records(parse_target("llvm")).name
    assert name.endswith("-llvm-tvm-0.27.0.post1.records.jsonl") and len(name) > 40
    assert default_records(parse_target("adreno-740")).name.startswith("adreno_740-opencl-texture-tvm-")
    monkeypatch.setenv("SMARTMEM_RECORDS", "else.jsonl")
    assert str(default_records(parse_target("llvm"))) == "else.jsonl"

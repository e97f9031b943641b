# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune``, and models compiled with what it found."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import psutil
import pytest

from matmul_model import matmuls
from smartmem_tvm.cli import tune
from smartmem_tvm.cli.tune_plan import models_of
from smartmem_tvm.deploy.tuned import default_records
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune import json_lines
from smartmem_tvm.tune.campaign import EFFORTS
from smartmem_tvm.tune.metaschedule import STRATEGIES

TRIALS = ("--effort", "rapid", "--trials", 8, "--threads", 2)


@pytest.fixture(scope="module")
def two_kernels(tmp_path_factory) -> Path:
    return matmuls(tmp_path_factory.mktemp("two") / "two.onnx", (64, 96), (96, 80))


@pytest.fixture(scope="module")
def one_kernel(tmp_path_factory) -> Path:
    return matmuls(tmp_path_factory.mktemp("one") / "one.onnx", (64, 96))


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
        outputs[name] = np.load(tmp_path / f"{name}.npz")["y1"]
    np.testing.assert_allclose(outputs["tuned"], outputs["plain"], rtol=1e-4, atol=1e-3)


def _interrupted(model: Path, records: Path) -> dict:
    """The command, sent Ctrl-C as soon as there is a record."""
    process = _started(model, records)
    _await_records(records, 1, process)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "ending after this batch" in err, err
    return json.loads(out)


def _started(model: Path, records: Path, *options, **environment) -> subprocess.Popen:
    command = [sys.executable, "-m", "smartmem_tvm", "tune", model, *TRIALS, "-o", records, "--json", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), env={**os.environ, **environment}, **pipes)


def _candidates(records: Path) -> list[dict]:
    """The records of candidates; all lines but a torn end have to be whole."""
    lines, damaged = json_lines.read(records)
    assert all(each.torn for each in damaged)
    return [line for line in lines if "record" in line]


def _await_records(path: Path, count: int, process: subprocess.Popen) -> None:
    """Wait until so many candidates are on record, or the process has ended."""
    while process.poll() is None and not (path.exists() and path.read_bytes().count(b'{"record"') >= count):
        time.sleep(0.02)


def _make_winners_count(records: Path) -> None:
    """Which kernel is faster is the machine's business; here both winners shall be."""
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len({line["workload"] for line in lines if "winner" in line}) == 2
    lines = [{**line, "untuned": 2 * line["seconds"]} if "winner" in line else line for line in lines]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
def test_a_killed_search_loses_nothing_and_leaves_nothing(one_kernel, smartmem, tmp_path):
    records, temporary, random = tmp_path / "found.jsonl", tmp_path / "tmp", Random(0)
    temporary.mkdir()
    seen: set[str] = set()
    for _ in range(3):
        process = _started(one_kernel, records, "--trials", 14, TMPDIR=str(temporary))
        _await_records(records, len(seen) + 1 + random.randrange(3), process)
        time.sleep(0.2 * random.random())
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers and len(list(temporary.iterdir())) == 1
        process.kill()
        process.communicate()
        now = [line["record"] for line in _candidates(records)]
        assert seen < set(now) and len(now) == len(set(now))
        seen = set(now)
        assert not psutil.wait_procs(workers, timeout=20)[1]
    last = _started(one_kernel, records, "--trials", 14, TMPDIR=str(temporary))
    (kernel,) = json.loads(last.communicate(timeout=300)[0])["kernels"]
    now = [line["record"] for line in _candidates(records)]
    assert kernel["trials"] == len(now) == len(set(now)) == 14 and kernel["tried_now"] == 14 - len(seen)
    assert not list(temporary.iterdir()) and smartmem("records", "check", records).code == 0


@pytest.mark.slow
def test_two_searches_share_a_file(one_kernel, smartmem, tmp_path):
    records = tmp_path / "found.jsonl"
    both = [_started(one_kernel, records, "--seed", seed) for seed in (0, 1)]
    tried = [json.loads(each.communicate(timeout=300)[0])["kernels"][0]["tried_now"] for each in both]
    lines = _candidates(records)
    runs = {line["run"]: [each["run"] for each in lines].count(line["run"]) for line in lines}
    assert tried == [8, 8] and list(runs.values()) == [8, 8]
    checked = smartmem("records", "check", records, "--json")
    assert checked.code == 0 and checked.data["files"][str(records)]["winners"] >= 1


@pytest.mark.slow
def test_half_kernels_are_tuned_as_they_are_compiled(two_kernels, smartmem, tmp_path):
    records, half = tmp_path / "half.jsonl", ("--target", "opencl", "--precision", "half-storage")
    found = smartmem("tune", two_kernels, *half, *TRIALS[:2], "--trials", 4, "-o", records, "--json")
    assert found.code == 0 and all(kernel["trials"] == 4 for kernel in found.data["kernels"]), found.err
    assert sum(kernel["failed"] + kernel["wrong"] for kernel in found.data["kernels"]) == 0
    _make_winners_count(records)
    assert smartmem("run", two_kernels, *half, "--records", records, "--json").data["tuning"]["tuned"] == 2
    plain = smartmem("run", two_kernels, *half[:2], "--records", records, "--json")
    assert plain.data["tuning"]["tuned"] == 0, "a kernel of float32 is another one"


@pytest.mark.slow
def test_a_full_disk_ends_it_and_nothing_is_lost(one_kernel, smartmem, tmp_path):
    records = tmp_path / "found.jsonl"
    # The limit holds for each file: that of the records is full before the other one is.
    other = dict.fromkeys(("date", "tvm", "schedules", "threads"), "0")
    records.write_text(json.dumps({"run": "0", "target": {}, "command": "-" * 100_000, **other}) + "\n")
    process = _started(one_kernel, records, "--trials", 10)
    _await_records(records, 1, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (records.stat().st_size + 4000, resource.RLIM_INFINITY))
    err = process.communicate(timeout=300)[1]
    assert process.returncode == 2 and f"in folder {tmp_path} cannot be written to (File too large)" in err
    assert "make room and run the same command again" in err and list(tmp_path.glob("*.jsonl")) == [records]
    assert smartmem("records", "check", records).code == 0
    known = len(_candidates(records))
    assert known >= 1
    (kernel,) = smartmem("tune", one_kernel, *TRIALS, "--trials", 10, "-o", records, "--json").data["kernels"]
    assert kernel["trials"] == 10 and kernel["tried_now"] == 10 - known


@pytest.mark.slow
def test_the_models_of_a_folder_are_tuned_together_on_some_cores(smartmem, tmp_path):
    matmuls(tmp_path / "long.onnx", (64, 96), (96, 80))
    matmuls(tmp_path / "short.onnx", (64, 96))
    (tmp_path / "torn.onnx").write_bytes(b"no model")
    core = min(os.sched_getaffinity(0))
    options = ("--effort", "rapid", "--trials", 4, "--cores", core, "-o", tmp_path / "found.jsonl")
    result = smartmem("tune", tmp_path, *options, "--json")
    assert result.code == 0 and f"model {tmp_path / 'torn.onnx'} is left out" in result.err
    assert result.data["threads"] == 1
    kernels = {tuple(kernel["names"]): kernel for kernel in result.data["kernels"]}
    shared = next(kernel for kernel in kernels.values() if len(kernel["models"]) == 2)
    (other,) = (kernel for kernel in kernels.values() if kernel is not shared)
    assert [name.split("/")[0] for name in shared["names"]] == ["long", "short"] and shared["launches"] == 2
    assert shared["models"]["short"] == 1 and shared["models"]["long"] + other["models"]["long"] == pytest.approx(1)
    assert shared["share"] == pytest.approx((1 + shared["models"]["long"]) / 2)
    assert [kernel["trials"] for kernel in kernels.values()] == [4, 4]
    gains = {each["name"]: each["gain"] for each in result.data["models"]}
    assert gains["short"] == pytest.approx(shared["gain"]) and set(gains) == {"long", "short"}
    table = smartmem("tune", tmp_path / "long.onnx", tmp_path / "short.onnx", *options)
    assert "2 models" in table.out and "long, short" in table.out and "0 candidates tried" in table.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "adreno-740"], "is the device of another machine"),
        (["-o", "new.jsonl", "--plot", "picture.txt"], "picture.txt must end with one of"),
        (["--trials", "0"], "0 is not a positive number"),
        (["--minutes", "-1"], "-1 is not a positive number of minutes"),
        (["--seed", "-1"], "-1 is not a number from 0"),
        (["--strategy", "luck"], "invalid choice: 'luck'"),
        (["-o", "."], "Records . are a folder"),
        (["-o", "/proc/none/new.jsonl"], "Records /proc/none/new.jsonl cannot be written"),
        (["--cores", "0,90000"], "Core 90000 of --cores does not exist here, or may not be used; choose others."),
        (["--cores", "0-"], "0- is no list of cores; write it like 0,2-3"),
        ([], "SMARTMEM_RECORDS is empty"),
    ],
)
def test_bad_options_are_refused(options, message, smartmem, model_path):
    result = smartmem("tune", model_path, *options)
    assert result.code == 2 and message in result.err and not result.out


@pytest.mark.parametrize(
    ("models", "message"),
    [(["none.onnx"], "Model none.onnx does not exist"), (["."], "Folder . has no file that ends with .onnx")],
)
def test_models_that_are_not_there_are_named(models, message, smartmem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = smartmem("tune", *models, "-o", "found.jsonl")
    assert result.code == 2 and message in result.err and not Path("found.jsonl").exists()


def test_profiles_that_are_not_there_are_named(smartmem, model_path, tmp_path):
    result = smartmem("tune", model_path, "--profiles", "missing.jsonl", "-o", tmp_path / "found.jsonl")
    assert result.code == 2 and "Profile store missing.jsonl does not exist" in result.err


def test_models_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / name for name in ("a/x.onnx", "b/x.onnx", "b/y.onnx")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = models_of([str(tmp_path / "a"), str(tmp_path / "b"), str(paths[2])])
    assert found == {str(tmp_path / "a/x"): paths[0], str(tmp_path / "b/x"): paths[1], "y": paths[2]}


@pytest.mark.parametrize(("text", "cores"), [("0", (0,)), ("3,0-1", (0, 1, 3)), ("2-4,3", (2, 3, 4))])
def test_lists_of_cores(text, cores):
    assert tune.core_list(text) == cores


def test_records_that_are_not_there_are_named(smartmem, model_path, tmp_path):
    result = smartmem("compile", model_path, "-o", tmp_path / "out", "--records", "missing.jsonl")
    assert (
        result.code == 2
        and "Records missing.jsonl do not exist; `smartmem tune MODEL --records missing.jsonl`" in result.err
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

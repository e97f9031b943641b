# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune --judge mesa``: prices by a compiler that is none here, and what becomes of them on a device."""

import json
import zlib
from contextlib import contextmanager

import pytest

from matmul_model import matmuls
from rpc_processes import device, tracker
from smartmem_tvm import mesa_folder
from smartmem_tvm.executor.workers import Answer
from smartmem_tvm.target import parse_target
from smartmem_tvm.tools.isa import candidates, compiler
from smartmem_tvm.tools.isa.compiler import Compiled
from smartmem_tvm.tune import build_candidates
from smartmem_tvm.tune.records import _plain

JUDGED = ("--target", "adreno-740", "--judge", "mesa")
CODE = """Native code for unnamed CL shader:
{work}end
; CL: outputs
; CL prog 1/1: 2 instr, 0 nops, 0 half, 4 full, 16 max_waves, 0 double_threadsize
"""


class Here:
    """Workers of this process."""

    def __init__(self, count, patience=60.0, cores=()):
        self.count = count

    def map(self, function, jobs, patience=None):
        answers = []
        for job in jobs:
            try:
                answers.append(Answer(function(job)))
            except Exception as error:
                answers.append(Answer(error=str(error)))
        return answers

    def close(self):
        pass


@pytest.fixture
def mesa(tmp_path, monkeypatch):
    """A compiler whose programs are of some length that depends on the source; returns what it compiled."""
    asked = []

    def run(programs, gpu):
        for name, program in programs.items():
            asked.append((gpu, program))
            work = "mad.f32 r0.y, r0.x, r1.x, r0.y\n" * (1 + zlib.crc32(program.encode()) % 999)
            yield name, Compiled(CODE.format(work=work), 1024)

    monkeypatch.setenv(compiler.FOLDER_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(compiler, "mesa_problem", lambda *_: None)
    for module in (compiler, candidates, mesa_folder):
        monkeypatch.setattr(module, "mesa_version", lambda *_: "26.2.6-1")
    monkeypatch.setattr(compiler, "_run", run)
    monkeypatch.setattr(build_candidates, "building_workers", Here)
    return asked


@pytest.fixture
def model(tmp_path):
    return matmuls(tmp_path / "two.onnx", (64, 96), (96, 80))


def lines(records, field):
    return [line for line in map(json.loads, records.read_text().splitlines()) if field in line]


def test_modelled_records_are_marked_go_on_and_are_compiled_and_said_to_be_modelled(smartmem, model, mesa, tmp_path):
    records, command = tmp_path / "found.jsonl", ("tune", model, *JUDGED, "-o", tmp_path / "found.jsonl", "--json")
    first = smartmem(*command, "--trials", 3)
    assert first.code == 0, first.err
    assert [each["tried_now"] for each in first.data["kernels"]] == [3, 3]
    assert first.data["judge"] == "Mesa 26.2.6-1, prices 1" and {gpu for gpu, _ in mesa} == {740}
    (run,) = lines(records, "command")
    assert run["judge"] == first.data["judge"] and run["device"] == "adreno-740" and run["driver"] == "Mesa 26.2.6-1"
    second = smartmem(*command, "--trials", 8)
    assert [each["tried_now"] for each in second.data["kernels"]] == [5, 5], second.err
    assert len(mesa) == len(set(mesa))  # nothing is compiled twice
    assert all(kernel["order"] is None for kernel in second.data["kernels"])
    faster = sum(kernel["gain"] > 1 for kernel in second.data["kernels"])
    assert faster and all(line["seconds"] > 0 for line in lines(records, "winner"))
    out = tmp_path / "out"
    compiled = smartmem("compile", model, *JUDGED[:2], "--records", records, "-o", out)
    assert compiled.code == 0, compiled.err
    said = "modelled and not measured, by Mesa 26.2.6-1, prices 1"
    for outcome in (compiled, smartmem("inspect", out)):
        assert said in _joined(outcome.out) and "the geometric mean of modelled times" in _joined(outcome.out)
    explained = smartmem("explain", model, *JUDGED[:2], "--schedules", "--records", records)
    assert "(modelled)" in explained.out.partition("Rules")[0] and said in _joined(explained.out), explained.out


def _joined(text: str) -> str:
    return " ".join(text.split())


def test_other_strategies_have_the_same_judge(smartmem, model, mesa, tmp_path):
    records = tmp_path / "found.jsonl"
    found = smartmem(
        *("tune", model, *JUDGED, "--strategy", "replay", "--trials", 2, "-o", records, "--json"),
    )
    assert found.code == 0, found.err
    assert all(kernel["trials"] == 2 for kernel in found.data["kernels"]), found.data


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "cpu", "--judge", "mesa"), "prices kernels for Adreno only, and target 'cpu' is none"),
        (("--judge", "mesa"), "prices kernels for Adreno only"),
        (("--target", "mali-g57", "--judge", "mesa"), "prices kernels for Adreno only"),
        (("--target", "opencl", "--judge", "mesa"), "prices kernels for Adreno only"),
        (("--target", "adreno-650", "--judge", "mesa"), "no OpenCL for Adreno 650"),
        ((*JUDGED, "--cores", "0"), "Option --cores is about what measures"),
        ((*JUDGED, "--threads", "2"), "Option --threads is about what measures"),
        ((*JUDGED, "--tracker", "127.0.0.1:1", "--key", "k"), "Option --tracker is about what measures"),
    ],
)
def test_refusals(smartmem, model, mesa, tmp_path, arguments, said):
    outcome = smartmem("tune", model, *arguments, "-o", tmp_path / "found.jsonl")
    assert outcome.code == 2 and said in outcome.err and outcome.err.count("\n") == 1, outcome.err
    assert not mesa and not (tmp_path / "found.jsonl").exists()


def test_without_mesa(smartmem, model, tmp_path, monkeypatch):
    monkeypatch.setenv(mesa_folder.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(mesa_folder, "machine_problem", lambda *_: None)
    outcome = smartmem("tune", model, *JUDGED, "-o", tmp_path / "found.jsonl")
    assert outcome.code == 2 and "smartmem isa --setup" in outcome.err and outcome.err.count("\n") == 1


@contextmanager
def _here(_):
    yield ()


@contextmanager
def _tracked(folder):
    with tracker(folder) as t, device(folder, t, "phone"):
        yield "--tracker", t.address, "--key", "phone", "--timeout", 20


@pytest.mark.device
@pytest.mark.parametrize("where", [_here, _tracked], ids=["here", "tracker"])
def test_a_device_measures_the_modelled_best_first_and_says_how_the_order_changed(
    smartmem, model, mesa, tmp_path, where
):
    """The first OpenCL device here is in the place of the phone: the target is the phone's but for its CPU."""
    records = tmp_path / "found.jsonl"
    assert smartmem("tune", model, *JUDGED, "--trials", 6, "-o", records).code == 0
    phone = _plain({**parse_target("adreno-740").export(), "host": parse_target("opencl").host.export()})
    text = records.read_text()
    for run in lines(records, "command"):
        text = text.replace(json.dumps(run["target"]), json.dumps(phone))
    records.write_text(text)
    priced = {line["record"]: line["seconds"][0] for line in lines(records, "trace")}
    with where(tmp_path) as device_words:
        target = ("--target", json.dumps(phone), *device_words)
        measured = smartmem("tune", model, *target, "--trials", 5, "-o", records, "--effort", "rapid", "--json")
    assert measured.code == 0, measured.err
    _, run = lines(records, "command")
    tried = [line for line in lines(records, "trace") if line["run"] == run["run"]]
    assert "judge" not in run and len(tried) == 10 and all(line["record"] in priced for line in tried)
    for kernel in {line["workload"] for line in tried}:
        mine = [line["record"] for line in tried if line["workload"] == kernel]
        others = [line["record"] for line in lines(records, "trace") if line["workload"] == kernel]
        assert mine == sorted(others[:6], key=priced.get)[:5]
    for kernel in measured.data["kernels"]:
        assert kernel["order"]["compared"] == 5 and 1 <= kernel["order"]["best_is"] <= 5 and not kernel["wrong"]

# SPDX-License-Identifier: Apache-2.0
"""``smartmem reduce``: what is left of a failing model, and models that do not fail."""

import numpy as np
import onnx
import pytest

import worker_jobs
from smartmem_tvm.cli import trial
from smartmem_tvm.cli.trial import Failure, Trials
from smartmem_tvm.errors import CheckError, UserError

KEYS = {"model", "output", "failure", "message", "nodes", "bytes", "operators", "trials", "command"}


def assert_refused(outcome, *words):
    """One sentence on stderr that has all `words`, and nothing else."""
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith("smartmem: error: ") and outcome.err.count("\n") == 1
    assert all(str(word) in outcome.err for word in words), outcome.err


def judge(tmp_path, code: str) -> str:
    """A command that runs a script, whose argument is the file of the model."""
    script = tmp_path / "judge.sh"
    script.write_text(code)
    return f"sh {script}"


@pytest.mark.device
def test_the_part_that_differs_is_left(smartmem, model_path, tmp_path):
    """Within an error of 0, a softmax is wrong and a transpose is not."""
    output = tmp_path / "small.onnx"
    outcome = smartmem("reduce", model_path, "-o", output, "--rtol", "0", "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data) == KEYS
    assert data["failure"] == "wrong" and data["nodes"] == [7, 1] and "Transpose" not in data["operators"]
    onnx.checker.check_model(onnx.load(output), full_check=True)
    assert data["command"] == f"smartmem verify {output} --input {tmp_path / 'small.npz'} --rtol 0"
    assert smartmem(*data["command"].split()[1:]).code == 1


def test_a_command_judges(smartmem, model_path, tmp_path):
    code = 'test -s "${1%.onnx}.npz" && grep -aq Softmax "$1"'
    outcome = smartmem("reduce", model_path, "-o", tmp_path / "s.onnx", "--command", judge(tmp_path, code))
    assert outcome.code == 0, outcome.err
    assert [node.op_type for node in onnx.load(tmp_path / "s.onnx").graph.node] == ["Softmax"]
    arrays = np.load(tmp_path / "s.npz")
    assert [each.name for each in onnx.load(tmp_path / "s.onnx").graph.input] == arrays.files
    assert "Operators left: Softmax." in outcome.out and f"judge.sh {tmp_path / 's.onnx'}" in outcome.out


@pytest.mark.device
def test_a_model_that_does_not_fail(smartmem, model_path, tmp_path):
    outcome = smartmem("reduce", model_path, "-o", tmp_path / "s.onnx")
    assert_refused(outcome, model_path, "does not fail", "within 0.0001")


def test_a_model_that_does_not_fail_by_the_command(smartmem, model_path, tmp_path):
    output = tmp_path / "s.onnx"
    command = judge(tmp_path, "exit 1")
    assert_refused(smartmem("reduce", model_path, "-o", output, "--command", command), "exit code 0")
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--command", "/no/such/program"), ("/no/such/program", "cannot be run")),
        (("-o", "small.txt"), (".onnx",)),
        (("-o", "no/folder/s.onnx"), ("no/folder",)),
        (("--target", "adreno-740", "--precision", "halves"), ()),
        (("--check", "everything"), ()),
        (("--records", "none.jsonl"), ("none.jsonl",)),
    ],
)
def test_bad_arguments(smartmem, model_path, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    outcome = smartmem("reduce", model_path, *arguments)
    assert outcome.code == 2 and outcome.out == ""
    assert all(word in outcome.err for word in words)
    assert list(tmp_path.iterdir()) == []


def test_the_model_is_not_overwritten(smartmem, model_path):
    before = model_path.read_bytes()
    assert_refused(smartmem("reduce", model_path, "-o", model_path), "would be lost")
    assert model_path.read_bytes() == before


@pytest.fixture
def arguments(model_path):
    """Of a command line, as its parser makes them."""
    from smartmem_tvm.cli import build_parser

    args = build_parser().parse_args(["reduce", str(model_path), "--timeout", "60"])
    args.rtol = 1e-4
    return args


def failed(error: Exception):
    def compile(*_, **__):
        raise error

    return compile


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (UserError("Node 'a3' of shape [1, 2] is 17 too large."), "refused", "Node # of shape # is # too large."),
        (CheckError("Check of outputs: pass 'fuse' changes output 'x'."), "check", "pass 'fuse'"),
        (CheckError("Check of index maps: the kernel of x reads y."), "check", "Check of index maps"),
        (ValueError("no 5"), "internal error", "ValueError trial.py:_wrong no #"),
    ],
)
def test_kinds_of_failures(model_path, arguments, monkeypatch, error, kind, what):
    import smartmem_tvm.deploy.build

    monkeypatch.setattr(smartmem_tvm.deploy.build, "compile", failed(error))
    arrays = {"x": np.zeros((2, 4, 8), "float32")}
    found = trial._failure((onnx.load(model_path).SerializeToString(), arrays, arguments))
    assert (found.kind, found.what) == (kind, what)
    assert found.same(Failure(kind, what, "another message")) and not found.same(Failure(kind, "other", ""))
    assert not found.same(None)


def test_a_crash_and_a_hang(model_path, arguments, monkeypatch):
    model, trials = onnx.load(model_path), Trials(arguments)
    try:
        monkeypatch.setattr(trial, "_failure", worker_jobs.crash)
        crash = trials.failure(model, {})
        assert crash.kind == "crash" and "SIGSEGV" in crash.what
        monkeypatch.setattr(trial, "_failure", worker_jobs.loop)
        monkeypatch.setattr(trials._workers, "patience", 0.5)
        assert trials.failure(model, {}).kind == "time-out"
    finally:
        trials.close()

# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear sentence, exit code 2, no traceback, nothing left behind."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper


def assert_refused(outcome, *words):
    """Exit code 2, nothing on stdout, and one line on stderr that has all `words`."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("smartmem: error: ")
    assert outcome.err.endswith(".\n") and outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err and "unexpected" not in outcome.err
    for word in words:
        assert str(word) in outcome.err


def truncated(path, model_path):
    path.write_bytes(model_path.read_bytes()[:200])
    return (path, "truncated or not an ONNX model")


def not_onnx(path, _model_path):
    path.write_text("I am no model at all\n")
    return (path, "not an ONNX model")


def empty(path, _model_path):
    path.touch()
    return (path, "not an ONNX model")


def missing(path, _model_path):
    return (path, "no such file")


def external(path, model_path):
    onnx.save(onnx.load(model_path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def missing_external_data(path, model_path):
    external(path, model_path)
    (path.parent / "weights.bin").unlink()
    return (path, "weights.bin")


def truncated_external_data(path, model_path):
    external(path, model_path)
    data = path.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:10])
    return (path,)


def climbing_external_data(path, model_path):
    external(path, model_path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "../weights.bin"
    path.write_bytes(model.SerializeToString())
    shutil.copy(path.parent / "weights.bin", path.parent.parent / "weights.bin")
    return (path, "../weights.bin", "outside")


def untyped_input(path, model_path):
    model = onnx.load(model_path)
    model.graph.input[0].type.tensor_type.elem_type = 0
    onnx.save(model, path)
    return (path, "Input 'x'", "no type that ONNX has")


def fatal_to_onnx(path, _model_path):
    """A Slice of what a Pad leaves, which is fewer than no elements: ONNX's libraries abort."""
    edges = {"Shape": ["x"], "Pad": ["x", "pads"], "Slice": ["Pad", "i", "i", "i"]}
    nodes = [helper.make_node(op_type, inputs, [op_type]) for op_type, inputs in edges.items()]
    numbers = {"pads": np.array([-9, 1]), "i": np.array([0])}
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in numbers.items()]
    ends = [helper.make_tensor_value_info(name, 1, [size]) for name, size in (("x", 4), ("Slice", None))]
    graph = helper.make_graph(nodes, "fatal", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return (path, "ONNX's libraries fail on")


FILES = [
    truncated,
    not_onnx,
    empty,
    missing,
    missing_external_data,
    truncated_external_data,
    climbing_external_data,
    untyped_input,
    fatal_to_onnx,
]


@pytest.mark.parametrize("command", ["compile", "run", "verify", "explain", "stats", "accesses"])
@pytest.mark.parametrize("spoil", FILES)
def test_model_file(smartmem, model_path, tmp_path, spoil, command):
    folder = tmp_path / "model"
    folder.mkdir()
    words = spoil(folder / "bad.onnx", model_path)
    before = sorted(tmp_path.rglob("*"))
    output = ("-o", tmp_path / "out") if command == "compile" else ()
    assert_refused(smartmem(command, folder / "bad.onnx", *output), *words)
    assert sorted(tmp_path.rglob("*")) == before


def test_traceback_flag(smartmem, tmp_path):
    outcome = smartmem("stats", tmp_path / "none.onnx", "--traceback")
    assert outcome.code == 2
    assert "Traceback" in outcome.err and outcome.err.splitlines()[-1].startswith("smartmem: error: ")


@pytest.mark.parametrize("command", ["compile", "run", "verify", "explain", "stats"])
def test_open_dimension(smartmem, symbolic_path, tmp_path, command):
    output = ("-o", tmp_path / "out") if command == "compile" else ()
    outcome = smartmem(command, symbolic_path, *output)
    assert_refused(outcome, symbolic_path, "dimension 0", "'batch'", "'x'", "--shape x:1,4,8")
    assert list(tmp_path.iterdir()) == []


def test_symbolic_batch_with_a_value_is_right(smartmem, symbolic_path):
    outcome = smartmem("verify", symbolic_path, "--shape", "x:3,4,8", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.data["outputs"]["y"]["shape"] == [3, 4, 8]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (["z:3,4,8"], ["'z'", "'x'"]),
        (["x:3,4"], ["'x'", "3x4"]),
        (["x:3,5,8"], ["'x'", "5"]),
        (["x:0,4,8"], ["'x'", "positive"]),
        (["x:3,four,8"], ["x:3,four,8", "--shape"]),
        (["3,4,8"], ["--shape 3,4,8"]),
        (["x:3,4,8", "x:2,4,8"], ["'x' twice"]),
    ],
)
def test_shape_argument(smartmem, symbolic_path, shapes, words):
    arguments = [each for shape in shapes for each in ("--shape", shape)]
    assert_refused(smartmem("explain", symbolic_path, *arguments), *words)


def save(path, **arrays):
    np.savez(path, **arrays)


X = np.zeros((2, 4, 8), "float32")
INPUTS = {
    "wrong name": (lambda p: save(p, z=X), ["'z'", "'x'"]),
    "no array": (lambda p: save(p), ["'x'"]),
    "wrong shape": (lambda p: save(p, x=X[:1]), ["'x'", "1x4x8", "2x4x8"]),
    "wrong dtype": (lambda p: save(p, x=X.astype("float64")), ["'x'", "float64", "float32"]),
    "objects": (lambda p: save(p, x=np.array([{}, 1], dtype=object)), ["in.npz"]),
    "not numpy": (lambda p: p.write_text("1 2 3"), ["in.npz"]),
    "empty": (lambda p: p.touch(), ["in.npz"]),
    "damaged": (lambda p: (save(p, x=X), p.write_bytes(p.read_bytes()[:150])), ["in.npz"]),
    "missing": (lambda p: None, ["in.npz", "No such file"]),
    "folder": (lambda p: p.mkdir(), ["in.npz"]),
}


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("command", ["run folder", "run file", "verify"])
def test_input_arrays(smartmem, model_path, compiled_folder, tmp_path, command, what):
    write, words = INPUTS[what]
    write(tmp_path / "in.npz")
    model = compiled_folder if command == "run folder" else model_path
    output = () if command == "verify" else ("--output", tmp_path / "out.npz")
    assert_refused(smartmem(command.split()[0], model, "--input", tmp_path / "in.npz", *output), *words)
    assert not (tmp_path / "out.npz").exists()


def never(*_args, **_kwargs):
    raise AssertionError("compiled although the output cannot be written")


def under_a_file(tmp_path):
    (tmp_path / "file").touch()
    return tmp_path / "file" / "out"


def a_file(tmp_path):
    (tmp_path / "out").touch()
    return tmp_path / "out"


def not_ours(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    return tmp_path / "out"


@pytest.mark.parametrize("spoil", [under_a_file, a_file, not_ours])
def test_output_folder_is_checked_before_compiling(smartmem, model_path, tmp_path, monkeypatch, spoil):
    monkeypatch.setattr("smartmem_tvm.deploy.build.compile", never)
    folder = spoil(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert_refused(smartmem("compile", model_path, "-o", folder), folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_output_folder_without_permission(smartmem, model_path, tmp_path, monkeypatch):
    # Not by chmod: the superuser may write anywhere.
    def refuse(self, *_args, **_kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("smartmem_tvm.deploy.build.compile", never)
    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    assert_refused(smartmem("compile", model_path, "-o", tmp_path / "out"), tmp_path / "out", "Permission denied")


def test_our_folder_with_something_else_in_it(smartmem, model_path, compiled_folder, tmp_path):
    folder = shutil.copytree(compiled_folder, tmp_path / "out")
    (folder / "notes.txt").write_text("mine")
    assert_refused(smartmem("compile", model_path, "-o", folder), folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_no_linker(smartmem, model_path, tmp_path, monkeypatch):
    monkeypatch.setattr("smartmem_tvm.deploy.build.compile", never)
    monkeypatch.setattr("tvm.support.cc.get_cc", lambda: None)
    monkeypatch.setattr("smartmem_tvm.deploy.link.cross_compiler", lambda triple: None)
    assert_refused(smartmem("compile", model_path, "-o", tmp_path / "out"), "g++")


@pytest.mark.parametrize("path", ["none/y.npz", "."])
def test_output_file_is_checked_before_compiling(smartmem, model_path, tmp_path, monkeypatch, path):
    monkeypatch.setattr("smartmem_tvm.deploy.build.compile", never)
    assert_refused(smartmem("run", model_path, "--output", tmp_path / path), tmp_path)
    assert list(tmp_path.iterdir()) == []


def break_export(monkeypatch, failure):
    """Let writing the library fail half way."""

    def export(_code, path, *_how):
        Path(path).write_bytes(b"half")
        failure()

    monkeypatch.setattr("smartmem_tvm.deploy.link.write_library", export)


def raise_(error):
    raise error


FAILURES = {
    "disk full": (lambda: raise_(OSError(28, "No space left on device")), 2),
    "linker fails": (lambda: raise_(RuntimeError("ld returned 1")), 2),
    "ctrl-c": (lambda: raise_(KeyboardInterrupt()), 130),
    "killed": (lambda: os.kill(os.getpid(), signal.SIGTERM), 130),
}


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("fresh", [True, False])
def test_interrupted_export_leaves_nothing(smartmem, model_path, compiled_folder, tmp_path, monkeypatch, what, fresh):
    failure, code = FAILURES[what]
    folder = tmp_path / "out"
    if not fresh:
        shutil.copytree(compiled_folder, folder)
    before = {path: path.stat().st_size for path in sorted(tmp_path.rglob("*"))}
    break_export(monkeypatch, failure)
    outcome = smartmem("compile", model_path, "-o", folder)
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.count("\n") == 1 and "Traceback" not in outcome.err
    assert {path: path.stat().st_size for path in sorted(tmp_path.rglob("*"))} == before


def test_failed_rename_keeps_the_old_folder(smartmem, model_path, compiled_folder, tmp_path, monkeypatch):
    folder = shutil.copytree(compiled_folder, tmp_path / "out")
    manifest = (folder / "manifest.json").read_text()
    rename = Path.rename

    def fail_once(self, target):
        if (self / "lib.so").exists() and Path(target) == folder and not fail_once.done:
            fail_once.done = True
            raise OSError(5, "Input/output error")
        return rename(self, target)

    fail_once.done = False
    # As on a file system that cannot exchange two names in one step.
    monkeypatch.setattr("smartmem_tvm.whole_folder._exchanged", lambda folder, new: False)
    monkeypatch.setattr(Path, "rename", fail_once)
    assert_refused(smartmem("compile", model_path, "-o", folder), folder, "Input/output error")
    assert (folder / "manifest.json").read_text() == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("target", ["c", "no such thing", '{"kind": "llvm", "nonsense": 1}'])
def test_target(smartmem, model_path, target):
    assert_refused(smartmem("explain", model_path, "--target", target), "target")


def test_dump_folder(smartmem, model_path, tmp_path):
    assert_refused(smartmem("explain", model_path, "--dump-dir", under_a_file(tmp_path)), "Dump folder")


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "much"])
def test_tolerance(smartmem, model_path, value):
    outcome = smartmem("verify", model_path, f"--rtol={value}")
    assert outcome.code == 2 and "usage:" in outcome.err and "Traceback" not in outcome.err

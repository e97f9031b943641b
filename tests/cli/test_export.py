# SPDX-License-Identifier: Apache-2.0
"""``smartmem export --runner``: a folder that runs a model wherever it is."""

import json
import shutil

import numpy as np
import pytest

from runner import built, call
from smartmem_tvm.deploy.export import load
from smartmem_tvm.remote import runner


@pytest.fixture
def quick(monkeypatch):
    """What is built is there already."""
    files = [built() / runner.PROGRAM, built() / runner.INTERFACE]
    monkeypatch.setattr(runner, "build", lambda machine, parts, place: files)


FILES = {"smartmem_run", "libsmartmem_run.so", "smartmem_run.h", "libtvm_runtime.so", "libtvm_ffi.so", "model"}


def same_numbers(folder, compiled, tmp_path, **variables) -> dict:
    """Run the folder's program beside Python; what it says."""
    model = load(compiled)
    draw = np.random.default_rng(0)
    arrays = {name: draw.standard_normal(shape).astype(dtype) for name, (shape, dtype) in model.inputs.items()}
    options = []
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        options += ["--input", f"{name}={tmp_path / name}.npy"]
    done = call(
        folder / "model", *options, "--output", tmp_path / "o", "--json", program=folder / "smartmem_run", **variables
    )
    assert done.code == 0, done.err
    for each, expected in zip(done.data["outputs"], model.run(arrays), strict=True):
        assert np.load(each["file"]).tobytes() == expected.tobytes()
    return done.data


def test_a_compiled_folder(smartmem, compiled_folder, tmp_path, quick, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = smartmem("export", compiled_folder, "--runner", "--json")
    assert outcome.code == 0, outcome.err
    folder = tmp_path / outcome.data["folder"]
    assert folder.name == f"{compiled_folder.name}_runner" and {path.name for path in folder.iterdir()} == FILES
    assert set(outcome.data["files"]) == {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert (outcome.data["host"], outcome.data["command"]) == ("", "./smartmem_run model")
    moved = shutil.move(folder, tmp_path / "elsewhere")
    assert same_numbers(moved, compiled_folder, tmp_path)["device"] == "cpu"


def test_a_model_is_compiled_first_and_an_older_folder_replaced(smartmem, model_path, tmp_path, quick):
    for budget in ((), ("--memory-budget", "1MB")):
        outcome = smartmem("export", model_path, "--runner", "-o", tmp_path / "out", *budget)
        assert outcome.code == 0, outcome.err
    assert "stream" in json.loads((tmp_path / "out" / "model" / "manifest.json").read_text())
    assert (tmp_path / "out" / "model" / "stream.plan").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_it_prints(smartmem, compiled_folder, tmp_path, quick):
    outcome = smartmem("export", compiled_folder, "--runner", "-o", tmp_path / "out")
    assert "libtvm_runtime.so" in outcome.out
    assert f"Run it with: cd {tmp_path / 'out'} && ./smartmem_run model --repeat 100" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{folder}", "--no-fuse"), "Option --no-fuse does nothing here: {folder} is compiled already"),
        (("{folder}", "--shape", "x:1"), "Option --shape does nothing here"),
        (("{folder}", "-o", "{folder}"), "Output folder {folder} exists and holds more or other than a runner"),
        (("{folder}", "-o", "{file}"), "Output folder {file} is a file"),
        (("{folder}", "--runtime", "/nowhere"), "--runtime /nowhere is no folder"),
        (("{folder}", "--runtime", "{empty}"), "{empty} has no libtvm_runtime.so: give --runtime"),
        (("{empty}",), "{empty} holds no compiled model"),
        (("/nowhere.onnx",), "/nowhere.onnx: no such file"),
    ],
)
def test_wrong_usage_is_a_sentence(arguments, message, smartmem, compiled_folder, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    names = {"folder": compiled_folder, "file": tmp_path / "file", "empty": tmp_path / "empty"}
    outcome = smartmem("export", *(each.format(**names) for each in arguments), "--runner")
    assert outcome.code == 2 and message.format(**names) in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def test_a_target_that_no_runner_runs_on(smartmem, compiled_folder, tmp_path):
    path = shutil.copytree(compiled_folder, tmp_path / "cuda") / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "target": '{"kind": "cuda", "arch": "sm_80"}'}))
    outcome = smartmem("export", path.parent, "--runner", "-o", tmp_path / "out")
    assert outcome.code == 2 and "was compiled for cuda, and the runner runs on CPUs and OpenCL devices" in outcome.err


def test_without_the_option_it_says_which(smartmem, compiled_folder):
    outcome = smartmem("export", compiled_folder)
    assert outcome.code == 2 and "required: --runner" in outcome.err


@pytest.mark.device
def test_built_as_users_have_it_and_on_opencl(smartmem, model_path, tmp_path):
    """Everything, with optimisation; PoCL compiles the kernels."""
    buffers, textures, out = (tmp_path / name for name in ("buffers", "textures", "out"))
    for target, compiled in (("opencl", buffers), ("opencl-texture", textures)):
        assert smartmem("compile", model_path, "--target", target, "-o", compiled).code == 0
    outcome = smartmem("export", textures, "--runner", "-o", out, "--json")
    assert outcome.code == 0, outcome.err
    assert {path.name for path in out.iterdir()} == FILES | {"opencl.so"}
    assert same_numbers(out, textures, tmp_path)["device"] == "opencl"
    shutil.rmtree(out / "model")
    shutil.copytree(buffers, out / "model")
    assert same_numbers(out, buffers, tmp_path)["device"] == "opencl"
    wrong = call(out / "model", "--device", "opencl:7", program=out / "smartmem_run")
    assert "there is no OpenCL device 7" in wrong.sentence
    none = call(out / "model", program=out / "smartmem_run", SMARTMEM_OPENCL_LIBRARY="/no/library.so")
    assert "the OpenCL library /no/library.so cannot be opened" in none.sentence
    (out / "opencl.so").unlink()
    without = call(out / "model", program=out / "smartmem_run")
    assert "opencl.so, with which OpenCL runs, cannot be opened" in without.sentence

# SPDX-License-Identifier: Apache-2.0
"""``smartmem run``: from a file and from a folder, arrays in and out."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest


@pytest.fixture
def x():
    return np.random.default_rng(5).standard_normal((2, 4, 8)).astype("float32")


def expected(model_path, x):
    session = onnxruntime.InferenceSession(model_path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_arrays_in_arrays_out(smartmem, model_path, compiled_folder, tmp_path, x, what):
    np.savez(tmp_path / "x.npz", x=x)
    model = model_path if what == "file" else compiled_folder
    outcome = smartmem("run", model, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", "--json")
    assert outcome.code == 0, outcome.err
    with np.load(tmp_path / "y.npz") as written:
        assert written.files == ["y"]
        y = written["y"]
    np.testing.assert_allclose(y, expected(model_path, x), rtol=1e-5, atol=1e-5)
    summary = outcome.data["outputs"]["y"]
    assert (summary["shape"], summary["dtype"]) == ([2, 4, 8], "float32")
    assert summary["min"] == pytest.approx(y.min()) and summary["max"] == pytest.approx(y.max())
    assert summary["mean"] == pytest.approx(y.mean(), abs=1e-6)
    assert outcome.data["latency_ms"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npz", "y.npz"]


def test_npy_for_the_only_input(smartmem, compiled_folder, tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    outcomes = [smartmem("run", compiled_folder, "--input", tmp_path / each, "--json") for each in ("x.npy", "x.npz")]
    assert outcomes[0].data["outputs"] == outcomes[1].data["outputs"]


def test_random_input_follows_the_seed(smartmem, compiled_folder):
    first, again, other = (
        smartmem("run", compiled_folder, "--seed", seed, "--repeat", 2, "--json").data for seed in (0, 0, 1)
    )
    assert first["outputs"] == again["outputs"] != other["outputs"]
    assert first["repeat"] == 2


def test_table(smartmem, compiled_folder):
    outcome = smartmem("run", compiled_folder, "--threads", 1)
    assert outcome.code == 0
    assert "2x4x8" in outcome.out and "float32" in outcome.out and "Threads: 1, peak memory" in outcome.out


def copy(folder, tmp_path, **changes):
    """A copy of a compiled folder with other values in its manifest."""
    target = shutil.copytree(folder, tmp_path / "copy")
    path = target / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return target


@pytest.mark.parametrize(
    ("key", "value"), [("format", 99), ("apache-tvm", "0.1"), ("apache-tvm-ffi", "0.1"), ("cpu", "i386")]
)
def test_folder_of_another_version(smartmem, compiled_folder, tmp_path, key, value):
    outcome = smartmem("run", copy(compiled_folder, tmp_path, **{key: value}))
    assert outcome.code == 2
    assert f"was compiled for {key} {value}" in outcome.err and "compile the model again" in outcome.err


def test_changed_library(smartmem, compiled_folder, tmp_path):
    folder = copy(compiled_folder, tmp_path)
    with (folder / "lib.so").open("r+b") as file:
        file.truncate(1000)
    outcome = smartmem("run", folder)
    assert outcome.code == 2
    assert f"{folder / 'lib.so'} is missing or not the one that was compiled" in outcome.err


def test_folder_of_something_else(smartmem, tmp_path):
    outcome = smartmem("run", tmp_path)
    assert outcome.code == 2
    assert f"{tmp_path} holds no compiled model" in outcome.err

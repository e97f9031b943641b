# SPDX-License-Identifier: Apache-2.0
"""A folder with a memory budget runs in a C++ program: native/examples/run_streamed.cc."""

import os
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

from helpers import constant, module, op
from smartmem_tvm import Options, compile
from smartmem_tvm.deploy.export import save
from smartmem_tvm.deploy.stream_library import library_path

NATIVE = Path(__file__).resolve().parents[2] / "native"
SHAPE = (4, 128)


def layers(x):
    for _ in range(4):
        x = op.nn.relu(op.matmul(x, constant(128, 128)))
    return x


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example, built as its comment says."""
    flags = runpy.run_path(str(NATIVE / "build.py"))["_include_flags"]()
    path = tmp_path_factory.mktemp("program") / "run_streamed"
    library = Path(tvm_ffi.__file__).parent / "lib"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", *flags, str(NATIVE / "examples" / "run_streamed.cc")]
    links = [f"-L{library}", "-ltvm_ffi", "-ldl", f"-Wl,-rpath,{library}"]
    subprocess.run([*command, "-o", str(path), *links], check=True)
    return path


@pytest.fixture
def folder(tmp_path):
    mod = module(layers, SHAPE)
    compiled = compile(mod, options=Options(memory_budget=180_000))
    save(compiled, tmp_path / "out", {"inputs": [], "outputs": ["y"]}, {})
    return compiled, tmp_path / "out"


def call(program, folder, x):
    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"
    command = [program, runtime, library_path(), folder, *map(str, x.shape)]
    return subprocess.run([*map(str, command)], input=x.tobytes(), capture_output=True, timeout=60)


def test_same_numbers(program, folder):
    compiled, path = folder
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    done = call(program, path, x)
    assert done.returncode == 0, done.stderr.decode()
    np.testing.assert_array_equal(np.frombuffer(done.stdout, "float32").reshape(SHAPE), compiled.run(x)[0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "stream.plan").unlink(), "stream.plan cannot be opened"),
        (lambda path: (path / "weights.bin").unlink(), "weights.bin cannot be opened"),
        (lambda path: os.truncate(path / "weights.bin", 1000), "are not those of the model"),
        (lambda path: os.truncate(path / "stream.plan", 100), "is not as it was written"),
        (lambda path: (path / "stream.plan").write_text("smartmem stream 2"), "is not as it was written"),
    ],
)
def test_what_is_missing_or_spoilt_is_a_sentence(program, folder, spoil, message):
    spoil(folder[1])
    done = call(program, folder[1], np.zeros(SHAPE, "float32"))
    assert done.returncode == 1 and message in done.stderr.decode()


def test_a_plan_of_nonsense_is_refused(program, folder):
    """Numbers changed at random: an error, or the right result where they did not matter; never a crash."""
    compiled, path = folder
    x = np.ones(SHAPE, "float32")
    expected, text = compiled.run(x)[0].tobytes(), (path / "stream.plan").read_text().split(" ")
    draw = np.random.default_rng(1)
    for _ in range(15):
        words = list(text)
        words[int(draw.integers(2, len(words)))] = str(int(draw.choice([-1, 0, 1, 64, 2**40, 2**62])))
        (path / "stream.plan").write_text(" ".join(words))
        done = call(program, path, x)
        assert done.returncode in (0, 1), done.stderr.decode()
        assert done.returncode == 1 or len(done.stdout) == len(expected)

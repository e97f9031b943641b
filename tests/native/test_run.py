# SPDX-License-Identifier: Apache-2.0
"""native/run: the program that runs compiled folders without Python, and its C interface."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import _smartmem_opencl
from helpers import constant, module, op
from runner import ROOT, built, call
from smartmem_tvm import Options, compile, thread_pool
from smartmem_tvm.analysis import item_cost, length_cost
from smartmem_tvm.deploy import export
from smartmem_tvm.deploy.stream_library import library_path
from smartmem_tvm.ir.several_sizes import with_sizes
from smartmem_tvm.target import parse_target

SHAPE = (4, 128)
WAYS = ("launches", "command-buffer")


def two_outputs(x, ids):
    y = op.nn.relu(op.matmul(x, constant(128, 256)))
    return op.sum(y, axis=-1), op.take(y, ids, axis=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two inputs of different types, two outputs, and a weight large enough to be kept apart from the code."""
    inputs = [
        {"name": "a/x", "shape": [*SHAPE], "dtype": "float32", "ids_below": None},
        {"name": "ids", "shape": [3], "dtype": "int64", "ids_below": 256},
    ]
    path = tmp_path_factory.mktemp("models") / "two"
    mod = module(two_outputs, SHAPE, ((3,), "int64"))
    export.save(compile(mod), path, {"inputs": inputs, "outputs": ["sum", "a/rows"]}, {})
    return path


@pytest.fixture(scope="module")
def arrays():
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    return {"a/x": x, "ids": np.array([5, 0, 255])}


@pytest.fixture
def files(arrays, tmp_path):
    """The options that name the inputs: a file of numpy's and one of numbers alone."""
    np.save(tmp_path / "x.npy", arrays["a/x"])
    arrays["ids"].tofile(tmp_path / "ids.bin")
    return ("--input", f"a/x={tmp_path / 'x.npy'}", "--input", f"ids={tmp_path / 'ids.bin'}")


@pytest.fixture
def copied(folder, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(folder, tmp_path / "copied")


def test_the_same_bits_as_in_python(folder, arrays, files, tmp_path):
    out = tmp_path / "out"
    outcome = call(
        folder, *files, "--output", out, "--json", "--repeat", "7", "--warmup", "0", "--device", "cpu", "--threads", "2"
    )
    assert outcome.code == 0, outcome.err
    expected = export.load(folder).run(arrays)
    assert sorted(path.name for path in out.iterdir()) == ["a_rows.npy", "sum.npy"]
    for name, want in zip(("sum", "a_rows"), expected):
        got = np.load(out / f"{name}.npy")
        assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())
    facts = outcome.data
    assert (facts["repeat"], facts["device"], facts["threads"]) == (7, "cpu", 2)
    assert [each["file"] for each in facts["outputs"]] == [f"{out}/sum.npy", f"{out}/a_rows.npy"]
    latency = facts["latency_ms"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert latency["min"] <= latency["mean"] <= latency["max"]
    assert 1 < facts["peak_mb"] < 60  # its own and not that of this process, which started it


def test_inputs_that_are_not_given_are_random_and_the_same_for_a_seed(folder, tmp_path):
    def sums(name, *more):
        assert call(folder, "--repeat", "1", "--output", tmp_path / name, *more).code == 0
        return np.load(tmp_path / name / "sum.npy")

    first, again, other, zeros = sums("1"), sums("2"), sums("3", "--seed", "1"), sums("4", "--zeros")
    assert first.tobytes() == again.tobytes() and first.any() and not zeros.any()
    assert first.tobytes() != other.tobytes()


def test_text_for_people(folder):
    outcome = call(folder, "--threads", "1", "--repeat=3")
    assert outcome.code == 0 and outcome.err == ""
    assert outcome.out.startswith(f"{folder} on cpu, 1 thread: 3 runs after 2 to warm up.\n")
    assert "Latency in ms: min " in outcome.out and "Output a/rows: 4x3 float32\n" in outcome.out


def test_what_cannot_be_printed_is_a_sentence(folder):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([built() / "smartmem_run", folder], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "cannot be printed" in done.stderr


def save_as(array, version=None, **changes):
    def write(path):
        if version is None:
            np.save(path, array)
        else:
            with path.open("wb") as file:
                np.lib.format.write_array(file, array, version=version)
        data = path.read_bytes()
        for old, new in changes.get("replaced", {}).items():
            assert old in data
            data = data.replace(old, new)
        path.write_bytes(data[: changes.get("length")] + changes.get("more", b""))

    return write


X = np.ones(SHAPE, "float32")
ARRAYS = {
    "numbers of type <f8, and it takes float32: convert it in numpy": save_as(X.astype("float64")),
    "shape 128x4, and it takes 4x128: give it in that shape": save_as(np.ones((128, 4), "float32")),
    "shape scalar, and it takes 4x128": save_as(np.float32(1)),
    "the first dimension fastest": save_as(np.asfortranarray(X)),
    "2047 bytes of numbers, and its shape takes 2048": save_as(X, length=-1),
    "2049 bytes of numbers, and its shape takes 2048": save_as(X, more=b"x"),
    "is no .npy file of numbers": save_as(np.zeros(3, [("a", "f4"), ("b", "i4")])),
    "x.npy is no .npy file": save_as(X, length=70),
    "no .npy file of numbers: ": save_as(X, replaced={b"fortran_order": b"fortran_ordem"}),
    "is no .npy file of numbers: write": save_as(X, replaced={b"(4, 128)": b"(4,-128)"}),
    "no .npy file of numbers: write it": save_as(X, replaced={b"(4, 128)": b"(4, 9999999999999999999999999)"}),
    "no .npy file": lambda path: path.write_bytes(b""),
    "cannot be read (No such file or directory)": lambda path: None,
    "cannot be read (it is no file)": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("message", ARRAYS)
def test_a_wrong_array_is_a_sentence(message, folder, tmp_path):
    ARRAYS[message](tmp_path / "x.npy")
    assert message in call(folder, "--input", f"a/x={tmp_path / 'x.npy'}").sentence


@pytest.mark.parametrize("write", [save_as(X.astype(">f4")), save_as(X, (2, 0)), save_as(X, (3, 0))])
def test_arrays_as_other_machines_write_them(write, folder, tmp_path):
    write(tmp_path / "x.npy")
    outcome = call(folder, "--input", f"a/x={tmp_path / 'x.npy'}", "--output", tmp_path, "--repeat", "1")
    assert outcome.code == 0, outcome.err
    sums = export.load(folder).run({"a/x": X, "ids": np.zeros(3, "int64")})[0]
    assert np.load(tmp_path / "sum.npy").tobytes() == sums.tobytes()


def test_heads_of_arrays_damaged_at_random_are_sentences(folder, tmp_path):
    draw = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", X)
    whole = (tmp_path / "x.npy").read_bytes()
    for _ in range(40):
        data = bytearray(whole)
        for place in draw.integers(0, 70, 2):
            data[place] = draw.choice([0, 32, 39, 40, 57, 255])
        (tmp_path / "x.npy").write_bytes(data)
        outcome = call(folder, "--input", f"a/x={tmp_path / 'x.npy'}", "--repeat", "1", "--no-check")
        assert outcome.code == 0 or outcome.sentence


USAGE = {
    "the folder of a model is missing": (),
    "there is no option '--nonsense'": ("{}", "--nonsense"),
    "one folder too many, 'more'": ("{}", "more"),
    "--repeat is '0' and must be a whole number from 1 on": ("{}", "--repeat", "0"),
    "--warmup is 'x' and must": ("{}", "--warmup=x"),
    "--threads is '99999999999999999999' and must": ("{}", "--threads", "99999999999999999999"),
    "--repeat needs a value": ("{}", "--repeat"),
    "--input x must be a name, a sign of equality and a file": ("{}", "--input", "x"),
    "--input gives 'ids' twice": ("{}", "--input", "ids=a", "--input", "ids=b"),
    "--device tpu is none": ("{}", "--device", "tpu"),
    "was compiled for cpu and does not run on opencl": ("{}", "--device", "opencl"),
    "the model has no input 'y': use one of its names, 'a/x', 'ids'": ("{}", "--input", "y=a"),
    "--output /dev/null is a file": ("{}", "--output", "/dev/null"),
    "has 466 bytes, and input 'ids' takes 24 (3 int64)": ("{}", "--input", "ids={}/466"),
    "holds no compiled model": ("/nowhere",),
}


@pytest.mark.parametrize("message", USAGE)
def test_wrong_usage_is_a_sentence(message, folder, tmp_path):
    place = tmp_path / "folder"
    place.symlink_to(folder)
    (tmp_path / "466").write_bytes(bytes(466))
    arguments = [each.replace("{}/", f"{tmp_path}/").replace("{}", str(place)) for each in USAGE[message]]
    assert message in call(*arguments).sentence


def edit(**changes):
    def spoil(folder):
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


WEIGHT = {"offset": 0, "shape": [2**40], "dtype": "float32", "scope": "global"}
DAMAGES = {
    "holds no compiled model": lambda folder: (folder / "manifest.json").unlink(),
    "manifest.json is not the one that was written": lambda folder: os.truncate(folder / "manifest.json", 300),
    "manifest.json is not the one that was written:": lambda folder: (folder / "manifest.json").write_text("[" * 99999),
    "is not the one that was written: compile": edit(inputs=[{"name": "x", "shape": [-1], "dtype": "float32"}]),
    "not the one that was written: compile": edit(inputs=[{"name": "x", "shape": [4], "dtype": "nonsense"}]),
    "is not the one that was written: compile the": edit(weights=[{**WEIGHT, "shape": [2**40, 2**40]}]),
    "the one that was written: compile the model again": edit(target="no target"),
    "weights.bin does not hold the weights": edit(weights=[WEIGHT]),
    "has code for 3 inputs and weights and lists 2": edit(weights=[]),
    "lists 1 outputs, and its code returns 2": edit(outputs=["y"]),
    "was written in format 4, and this program reads formats 5 to 9": edit(format=4),
    "is not the one that was written": edit(sizes=[{}]),
    "has several sizes and a memory budget": edit(sizes=[{}], stream={}),
    "holds a library without main_7": edit(sizes=[{"function": "main_7", "inputs": [], "outputs": []}]),
    "was compiled by TVM 0.26.0, and this program was built for TVM": edit(**{"apache-tvm": "0.26.0"}),
    "was compiled for the CPU riscv64-linux-gnu": edit(host="riscv64-linux-gnu"),
    "was compiled for cuda, and this program runs on CPUs": edit(target='{"kind": "cuda", "keys": ["cuda", "gpu"]}'),
    "holds code that is not linked yet: run cc": edit(library="lib.tar", link="run cc"),
    "lib.so is missing or not the one that was compiled": lambda folder: (folder / "lib.so").unlink(),
    "lib.so is missing or not": lambda folder: os.truncate(folder / "lib.so", 5000),
    "weights.bin is missing or not the one": lambda folder: os.truncate(folder / "weights.bin", 1000),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_folder_is_a_sentence(message, copied):
    DAMAGES[message](copied)
    assert message in call(copied, "--repeat", "1").sentence


def test_without_checksums_a_short_file_of_weights_is_found_too(copied):
    os.truncate(copied / "weights.bin", 1000)
    assert "does not hold the weights" in call(copied, "--no-check").sentence


def test_a_model_within_a_memory_budget(tmp_path):
    def layers(x):
        for _ in range(4):
            x = op.nn.relu(op.matmul(x, constant(128, 128)))
        return x

    compiled = compile(module(layers, SHAPE), options=Options(memory_budget=180_000))
    inputs = [{"name": "x", "shape": [*SHAPE], "dtype": "float32"}]
    export.save(compiled, tmp_path / "model", {"inputs": inputs, "outputs": ["y"]}, {})
    X.tofile(tmp_path / "x.bin")
    arguments = (tmp_path / "model", "--input", f"x={tmp_path / 'x.bin'}", "--output", tmp_path, "--repeat", "3")
    assert "stream.so, with which weights are read within a budget, cannot be opened" in call(*arguments).sentence
    there = shutil.copytree(built(), tmp_path / "program", symlinks=True)
    shutil.copy(library_path(), there)
    outcome = call(*arguments, program=there / "smartmem_run")
    assert outcome.code == 0, outcome.err
    assert np.load(tmp_path / "y.npy").tobytes() == compiled.run(X)[0].tobytes()
    (tmp_path / "model" / "stream.plan").write_text("smartmem stream 2")
    assert "is not as it was written" in call(*arguments, program=there / "smartmem_run").sentence


@pytest.mark.parametrize("variables, opened", [({}, True), ({"SMARTMEM_THREADS": "tvm"}, False)])
def test_loops_are_shared_by_the_pool_beside_the_program(variables, opened, folder, arrays, files, tmp_path):
    there = shutil.copytree(built(), tmp_path / "program", symlinks=True)
    shutil.copy(thread_pool.library_path(), there)
    arguments = (folder, *files, "--threads", "2", "--repeat", "20", "--output", tmp_path)
    variables = {**variables, "LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(tmp_path / "loader")}
    outcome = call(*arguments, program=there / "smartmem_run", **variables)
    assert outcome.code == 0, outcome.err
    loader = next(tmp_path.glob("loader.*")).read_text(errors="replace")
    assert (f"binding file {there}/threads.so" in loader) == opened
    assert np.load(tmp_path / "sum.npy").tobytes() == export.load(folder).run(arrays)[0].tobytes()


@pytest.mark.device
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
def test_an_opencl_device_whose_weights_are_in_one_buffer(target, tmp_path):
    def layers(x):
        for _ in range(4):
            x = op.nn.softmax(op.add(op.matmul(x, constant(128, 128)), constant(128)))
        return x

    compiled = compile(module(layers, SHAPE), parse_target(target))
    inputs = [{"name": "x", "shape": [*SHAPE], "dtype": "float32"}]
    export.save(compiled, tmp_path / "model", {"inputs": inputs, "outputs": ["y"]}, {})
    X.tofile(tmp_path / "x.bin")
    there = shutil.copytree(built(), tmp_path / "program", symlinks=True)
    shutil.copy(_smartmem_opencl.library_path(), there)
    # Five runs, of which the first is as it is without a recording, and the others replay one.
    ways = ({"SMARTMEM_OPENCL_REPLAY": way, "SMARTMEM_OPENCL_SHARED_ARGUMENTS": "1"} for way in WAYS)
    for repeat, way in (("1", {}), *(("5", way) for way in ways)):
        arguments = (tmp_path / "model", "--input", f"x={tmp_path / 'x.bin'}", "--output", tmp_path, "--repeat", repeat)
        variables = {"POCL_DEVICES": "pthread", "HOME": str(tmp_path), "SMARTMEM_OPENCL_CACHE": "0", **way}
        outcome = call(*arguments, program=there / "smartmem_run", **variables)
        assert outcome.code == 0, outcome.err
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), compiled.run(X)[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint8", "bfloat16"])
def test_other_types(dtype, tmp_path):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    mod = module(lambda x: op.concat([x, x], axis=0), (5,), dtype=dtype)
    inputs = [{"name": "x", "shape": [5], "dtype": dtype}]
    export.save(compile(mod), tmp_path / "model", {"inputs": inputs, "outputs": ["y"]}, {})
    x = np.array([0, 1, 0, 1, 1]).astype(kind)
    np.save(tmp_path / "x.npy", x)
    outcome = call(tmp_path / "model", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path, "--repeat", "1")
    assert outcome.code == 0, outcome.err
    got = np.load(tmp_path / "y.npy")
    assert got.view(kind).tolist() == [*x.tolist(), *x.tolist()] and got.dtype.itemsize == kind.itemsize


def test_instructions_that_the_cpu_lacks_are_a_sentence(folder):
    """The signal is sent; no CPU lacks the same instructions as another."""
    command = [str(built() / "smartmem_run"), str(folder), "--repeat", "100000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_library(process.pid)
    process.send_signal(signal.SIGILL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "") and "instructions that this CPU lacks" in err


def wait_for_library(process: int) -> None:
    """Until it has loaded a model: the signal is caught from then on."""
    end = time.monotonic() + 60
    while "lib.so" not in Path(f"/proc/{process}/maps").read_text() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.fixture(scope="module", params=[1.0, 1e9], ids=["apart", "twice the smaller one"])
def sized(request, tmp_path_factory):
    """A folder of two sizes: with kernels of their own, or the first one made of the second one's."""
    mods = [module(lambda x: op.nn.relu(op.matmul(x, constant(128, 256))), (rows, 128)) for rows in (4, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_cost, "MORE", request.param)
        patch.setattr(length_cost, "MORE", 1.0)
        compiled = compile(with_sizes(mods))
    assert len(compiled.rules) == 2
    sizes = [
        {"function": name, "inputs": [{"name": "x", "shape": [rows, 128], "dtype": "float32"}], "outputs": ["y"]}
        for name, rows in zip(compiled.sizes, (4, 2), strict=True)
    ]
    path = tmp_path_factory.mktemp("models") / "sized"
    export.save(compiled, path, {**{name: sizes[0][name] for name in ("inputs", "outputs")}, "sizes": sizes}, {})
    return path


def test_files_and_shapes_choose_among_sizes(sized, tmp_path):
    for rows in (4, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 128)).astype("float32")
        np.save(tmp_path / "x.npy", x)
        x.tofile(tmp_path / "x.bin")
        (wanted,) = export.load(sized).run(x)
        for given in (["x=x.npy"], ["x=x.bin", "--shape", f"x:{rows},128"]):
            file = given[0].replace("=", f"={tmp_path}/")
            outcome = call(sized, "--input", file, *given[1:], "--output", tmp_path / "out")
            assert outcome.code == 0, outcome.err
            np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), wanted)
    assert "y: 4x256" in call(sized, "--zeros").out and "y: 2x256" in call(sized, "--shape", "x:2,128").out


def test_a_size_that_a_folder_lacks(sized, folder, tmp_path):
    known = "it has 'x' 4x128; 'x' 2x128: give one of these"
    assert call(sized, "--shape", "x:3,128").sentence.startswith(f"no size of this model takes 'x' 3x128; {known}")
    np.save(tmp_path / "x.npy", np.zeros((3, 128), "float32"))
    assert known in call(sized, "--input", f"x={tmp_path / 'x.npy'}").sentence
    assert "no input 'z'" in call(sized, "--shape", "z:3").sentence
    assert "no size of this model takes 'ids' 4" in call(folder, "--shape", "ids:4").sentence
    for wrong, said in {"x": "must be a name, a colon", "x:1,": "whole number", "x:a": "whole number"}.items():
        assert said in call(sized, "--shape", wrong).sentence
    assert "gives 'x' twice" in call(sized, "--shape", "x:4,128", "--shape", "x:4,128").sentence


def test_sizes_by_the_c_interface(sized):
    library = ctypes.CDLL(str(built() / "libsmartmem_run.so"))
    model, x = ctypes.c_void_p(), np.random.default_rng(5).standard_normal((4, 128)).astype("float32")
    library.smartmem_run_error.restype = ctypes.c_char_p

    def called(name, *arguments):
        assert getattr(library, f"smartmem_run_{name}")(*arguments) == 0, library.smartmem_run_error()

    def result(rows):
        got = np.empty((rows, 256), "float32")
        called("run", model)
        called("get_output", model, b"y", got.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(got.nbytes))
        return got

    called("open", str(sized).encode(), None, ctypes.byref(model))
    assert library.smartmem_run_size_count(model) == 2
    for number, rows in enumerate((4, 2)):
        called("use_size", model, number)
        data = x[:rows].ctypes.data_as(ctypes.c_void_p)
        called("set_input", model, b"x", data, ctypes.c_uint64(x[:rows].nbytes))
        np.testing.assert_array_equal(result(rows), export.load(sized).run(x[:rows])[0])
    called("use_size", model, 0)
    np.testing.assert_array_equal(result(4), export.load(sized).run(x)[0], "its input is kept")
    assert library.smartmem_run_use_size(model, 2) == -1 and b"no size 2" in library.smartmem_run_error()
    library.smartmem_run_close(model)


def c_program(output: Path, place: Path, *flags: str) -> Path:
    """tests/native/run_interface.c, as C11."""
    source, run = ROOT / "tests" / "native" / "run_interface.c", ROOT / "native" / "run"
    warnings = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-D_POSIX_C_SOURCE=200809L")
    links = (f"-L{place}", "-lsmartmem_run", "-pthread", f"-Wl,-rpath,{place}", f"-Wl,-rpath-link,{place}")
    command = ["gcc", *warnings, *flags, f"-I{run}", str(source), "-o", str(output), *links]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def one_input(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "one"
    compiled = compile(module(lambda x: op.nn.relu(op.matmul(x, constant(128, 256))), SHAPE))
    inputs = [{"name": "x", "shape": [*SHAPE], "dtype": "float32"}]
    export.save(compiled, path, {"inputs": inputs, "outputs": ["y"]}, {})
    return path


def run_threads(program: Path, model: Path, tmp_path: Path, threads: int, **variables: str) -> bytes:
    x = np.random.default_rng(1).standard_normal(SHAPE).astype("float32")
    x.tofile(tmp_path / "x.bin")
    command = [str(each) for each in (program, model, tmp_path / "x.bin", threads)]
    environment = {"TVM_NUM_THREADS": "1", "TVM_BIND_THREADS": "0", **variables}
    done = subprocess.run(command, capture_output=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Sanitizer" not in done.stderr and b"runtime error" not in done.stderr, done.stderr.decode()
    (expected,) = export.load(model).run(x)
    assert done.stdout == expected.tobytes()
    return done.stdout


def test_the_c_interface_from_several_threads(one_input, tmp_path):
    run_threads(c_program(tmp_path / "program", built()), one_input, tmp_path, 4)


def test_a_name_of_the_interface_is_all_that_the_library_shows():
    done = subprocess.run(["nm", "-D", "--defined-only", str(built() / "libsmartmem_run.so")], capture_output=True)
    names = {line.split()[-1] for line in done.stdout.decode().splitlines()}
    ours = {name for name in names if "smartmem" in name}
    header = (ROOT / "native" / "run" / "smartmem_run.h").read_text()
    assert len(ours) == header.count("SMARTMEM_RUN_API ") - 1
    assert all(name.startswith("smartmem_run_") and f"{name}(" in header for name in ours)


SANITIZED = "-g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"


@pytest.mark.slow
def test_memory_is_used_as_it_should_be_and_given_back(one_input, folder, files, tmp_path):
    """With GCC's sanitizers, of leaks too."""
    place = built("None", SANITIZED)
    run_threads(c_program(tmp_path / "program", place, *SANITIZED.split()), one_input, tmp_path, 3)
    outcome = call(folder, *files, "--output", tmp_path, program=place / "smartmem_run")
    assert outcome.code == 0 and "Sanitizer" not in outcome.err and "runtime error" not in outcome.err
    wrong = call(folder, "--input", f"ids={tmp_path / 'x.npy'}", program=place / "smartmem_run")
    assert "numbers of type <f4" in wrong.sentence


def test_every_file_is_described():
    listed = (ROOT / "native" / "README.md").read_text(encoding="utf-8")
    run = ROOT / "native" / "run"
    stems = {str(path.relative_to(ROOT / "native").with_suffix("")) for path in run.rglob("*.*")}
    assert {stem for stem in stems if f"`{stem}`" not in listed} == {"run/CMakeLists"}

# SPDX-License-Identifier: Apache-2.0
"""A folder with caches without Python: the program's ids, and the C interface, beside `sm.Decoder`."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import _smartmem_opencl
import rows_behind
import smartmem_tvm as sm
from rows_behind import HIDDEN, LAST, SEEN
from runner import ROOT, built, call
from smartmem_tvm.deploy import export
from smartmem_tvm.frontend import input_spec, output_names
from smartmem_tvm.ir.several_sizes import size_functions

sys.path.insert(0, str(ROOT / "benchmarks"))
from decoder_network import ELEMENTS, TENSOR, Decoder

NETWORK = Decoder(layers=1, tokens="tokens", form=ELEMENTS)
PROMPTS = [5], [1, 2, 3], [7, 0, 9, 9, 4, 1]


PLAIN = {"schedule": False, "fuse_attention": False}  # plain loops, which compile faster


def saved(path, target=None, model=None, batch=1, **options):
    """Save a network for 1 and for 4 tokens."""
    shapes = [dict.fromkeys(("input_ids", "position_ids"), (batch, count)) for count in (1, 4)]
    mod = sm.from_onnx(model or NETWORK.model(), shapes)
    sizes = []
    for function in size_functions(mod):
        spec = input_spec(mod, function).items()
        inputs = [{"name": name, "shape": list(shape), "dtype": dtype} for name, (shape, dtype) in spec]
        sizes.append({"function": function, "inputs": inputs, "outputs": output_names(mod, function)})
    compiled = sm.compile(mod, target, sm.Options(caches=True, **options))
    export.save(compiled, path, {**sizes[0], "sizes": sizes}, {})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder") / "model"
    return saved(path, **PLAIN)


@pytest.fixture(scope="module")
def decoder(folder):
    return sm.Decoder(folder)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_program_writes_the_same_ids(folder, decoder, prompt):
    ids = ",".join(map(str, prompt))
    outcome = call(folder, "--prompt-ids", ids, "--tokens", "8", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.data["ids"] == decoder.generate(prompt, 8)
    assert outcome.data["capacity"] == NETWORK.capacity
    assert call(folder, f"--prompt-ids={ids}").out.startswith(f"{outcome.data['ids'][0]}\n")


def written(folder, prompts, tokens=8):
    """Return the ids that the program writes after several prompts."""
    words = [word for each in prompts for word in ("--prompt-ids", ",".join(map(str, each)))]
    outcome = call(folder, *words, "--tokens", tokens, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.data["ids"]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three sequences at once."""
    network = Decoder(layers=1, tokens="tokens", form=TENSOR, batch=3)
    return saved(tmp_path_factory.mktemp("three") / "model", model=network.model(), batch=3, **PLAIN)


def test_the_program_writes_several_sequences(three):
    """Prompts of any lengths, also fewer than sequences, and those that fill the caches before the others."""
    random, decoder = np.random.default_rng(51), sm.Decoder(three)
    for count in (1, 2, 3, 3):
        prompts = [random.integers(0, 61, random.integers(1, 9 if count == 1 else 17)).tolist() for _ in range(count)]
        want = decoder.generate(prompts, 8)
        assert written(three, prompts) == (want if count > 1 else want[0]), prompts
    plain = call(three, "--prompt-ids", "1,2", "--prompt-ids=3", "--tokens", "2")
    assert plain.out.splitlines()[:2] == [",".join(map(str, each)) for each in decoder.generate([[1, 2], [3]], 2)]
    words = ("--prompt-ids", "1") * 4
    assert "4 lists of tokens are given, and the model writes 3 sequences at once" in call(three, *words).sentence


@pytest.mark.parametrize(("form", "scores"), [(HIDDEN, "all"), (SEEN, "last"), (LAST, "all")])
def test_rows_behind_a_token(tmp_path, form, scores):
    """Padding is tested as in Python: a model that sees it is read token by token."""
    random = np.random.default_rng([len(form), len(scores)])
    folder = saved(tmp_path / "model", model=rows_behind.network(form, 2, scores), batch=2, **PLAIN)
    decoder = sm.Decoder(folder)
    for _ in range(3):
        prompts = [random.integers(0, 7, random.integers(1, 9)).tolist() for _ in range(2)]
        assert written(folder, prompts, 4) == decoder.generate(prompts, 4), prompts


@pytest.mark.device
def test_on_opencl(decoder, tmp_path):
    """Functions take caches after all other inputs there."""
    there = tmp_path / "there"
    shutil.copytree(built(), there, symlinks=True)
    shutil.copy(_smartmem_opencl.library_path(), there)
    path = saved(tmp_path / "model", "opencl")
    for prompt in PROMPTS:
        ids = ",".join(map(str, prompt))
        variables = {"POCL_DEVICES": "pthread", "HOME": str(tmp_path), "SMARTMEM_OPENCL_CACHE": "0"}
        words = ("--prompt-ids", ids, "--tokens", "8", "--json")
        outcome = call(path, *words, program=there / "smartmem_run", **variables)
        assert outcome.code == 0 and outcome.data["ids"] == decoder.generate(prompt, 8), outcome


@pytest.mark.parametrize(
    ("words", "sentence"),
    (
        (("--prompt-ids", "1,2", "--tokens", "16"), "the caches have 16 rows, and 2 are taken, and 15 more do not fit"),
        (("--prompt-ids", ",".join("1" * 17)), "the caches have 16 rows, and 17 more do not fit"),
        (("--prompt-ids", "1,-2"), "An id of --prompt-ids is '-2' and must be a whole number from 0 on."),
        (("--tokens", "3"), "--tokens needs a prompt"),
    ),
)
def test_what_is_refused(folder, words, sentence):
    assert sentence in call(folder, *words).sentence


def test_a_manifest_with_other_caches_is_refused(folder, tmp_path):
    for number, change in enumerate(({"input": "nothing"}, {"output": "nothing"}, {"axis": 4}, {"axis": -1})):
        copy = shutil.copytree(folder, tmp_path / str(number))
        manifest = json.loads((copy / "manifest.json").read_text())
        manifest["sizes"][0]["caches"][0] |= change
        (copy / "manifest.json").write_text(json.dumps(manifest))
        assert "is not the one that was written" in call(copy, "--prompt-ids", "1").sentence


class Interface:
    """The C interface, whose functions raise what it says."""

    def __init__(self, folder):
        self.library = ctypes.CDLL(str(built() / "libsmartmem_run.so"))
        self.library.smartmem_run_error.restype = ctypes.c_char_p
        for name in ("capacity", "length", "length_of"):
            getattr(self.library, f"smartmem_run_{name}").restype = ctypes.c_int64
        self.model = ctypes.c_void_p()
        self.check(self.library.smartmem_run_open(str(folder).encode(), None, ctypes.byref(self.model)))

    def check(self, code):
        if code < 0:
            raise RuntimeError(self.library.smartmem_run_error().decode())
        return code

    def call(self, name, *arguments):
        return self.check(getattr(self.library, f"smartmem_run_{name}")(self.model, *arguments))

    def step_each(self, lists, sequences=3):
        scores = np.empty((sequences, NETWORK.vocabulary), "float32")
        ids, counts = [id for each in lists for id in each], [len(each) for each in lists]
        given = (ctypes.c_int64 * len(ids))(*ids), (ctypes.c_int32 * len(counts))(*counts)
        place = scores.ctypes.data_as(ctypes.c_void_p)
        self.call("step_each", *given, len(lists), place, ctypes.c_int64(scores.size))
        return scores

    def step(self, ids, count=NETWORK.vocabulary):
        scores = np.empty(count, "float32")
        given = (ctypes.c_int64 * len(ids))(*ids)
        self.call("step", given, len(ids), scores.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(count))
        return scores


LISTS = [[1, 2, 3, 4, 5], [7], []], [[], [8], [9] * 16], [[6], [], [3, 4]], [[1]]
"""Tokens of three sequences; before the third the last sequence begins again."""

_CHILD = """
import sys
import numpy as np
import test_run_decoder as tests

library = tests.Interface(sys.argv[1])
assert library.call("cache_count") == 2 and library.call("capacity") == tests.NETWORK.capacity
steps = []
for _ in range(2):
    library.call("reset")
    steps += [library.step(ids) for ids in ([1, 2, 3], [7], [0, 9, 9, 4, 1])]
    assert library.call("length") == 9
np.save(sys.argv[2], steps)
for ids, said in (([], "there are no tokens"), ([1] * 8, "and 9 are taken, and 8 more do not fit"), ([-1], "no id")):
    try:
        library.step(ids)
    except RuntimeError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
assert library.call("length") == 9
try:
    library.step([1], 3)
except RuntimeError as error:
    assert "scores 61 tokens, and there is room for 3" in str(error), error
library.call("clear_caches")
library.library.smartmem_run_close(library.model)
library = tests.Interface(sys.argv[3])
assert library.call("sequences") == 3
found = [library.step_each(lists) for lists in tests.LISTS[:2]]
assert [library.call("length_of", each) for each in range(3)] == [5, 2, 16] and library.call("length") == 16
library.call("reset_sequence", 2)
found += [library.step_each(lists) for lists in tests.LISTS[2:]]
np.save(sys.argv[4], found)
for name, given, said in (("length_of", 3, "no sequence 3"), ("reset_sequence", -1, "no sequence -1")):
    try:
        library.call(name, given)
    except RuntimeError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
library.library.smartmem_run_close(library.model)
"""


def test_the_c_interface_steps(folder, decoder, three, tmp_path):
    """In a process of its own, as the library brings TVM's runtime with it."""
    out, of_three = tmp_path / "steps.npy", tmp_path / "three.npy"
    command = [sys.executable, "-c", _CHILD, *map(str, (folder, out, three, of_three))]
    path = os.pathsep.join(map(str, (Path(__file__).parent, ROOT / "tests")))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT / "tests", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    decoder.reset()
    want = [decoder.feed(ids) for ids in ([1, 2, 3], [7], [0, 9, 9, 4, 1])]
    np.testing.assert_allclose(np.load(out), want * 2, rtol=1e-5, atol=1e-6)
    several, want = sm.Decoder(three), []
    for number, lists in enumerate(LISTS):
        if number == 2:
            several.reset(2)
        want.append(several.feed(lists))
    np.testing.assert_allclose(np.load(of_three), want, rtol=1e-5, atol=1e-6)

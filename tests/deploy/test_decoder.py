# SPDX-License-Identifier: Apache-2.0
"""A decoder beside ONNX Runtime, which gets all of the caches back each time; what is written, and what is refused."""

import json
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import smartmem_tvm as sm
from cache_updates import Update
from smartmem_tvm import UserError
from smartmem_tvm.cli import main
from smartmem_tvm.deploy.export import load
from smartmem_tvm.deploy.manifest import require_no_caches
from smartmem_tvm.deploy.sampling import Sampling
from smartmem_tvm.ir.several_sizes import with_sizes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from decoder_network import CONCAT, ELEMENTS, Decoder

NETWORK = Decoder(layers=1, tokens="tokens", form=ELEMENTS)
PROMPTS = [5], [1, 2, 3], [7, 0, 9, 9, 4, 1]
"""Shorter than the sizes of 1 and of 4 tokens, padded, and in two parts."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The network as a file."""
    found = tmp_path_factory.mktemp("decoder") / "model.onnx"
    onnx.save(NETWORK.model(), found)
    return found


@pytest.fixture(scope="module")
def folder(path):
    """It compiled for 1 and for 4 tokens, with plain loops, which compile faster."""
    out = path.with_name("out")
    shapes = [word for name in ("input_ids", "position_ids") for word in ("--shape", f"{name}:1,{{1,4}}")]
    switches = ("--no-schedule", "--no-fuse-attention", "--no-tuned", "--no-profiles")
    assert main(["compile", str(path), "-o", str(out), "--cache", "auto", *shapes, *switches]) == 0
    return out


@pytest.fixture(scope="module")
def model(folder):
    """The folder, loaded."""
    return load(folder)


@pytest.fixture(scope="module")
def greedy(path):
    """Return (prompt, tokens) -> what ONNX Runtime chooses, and its caches after the last run."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def choose(prompt, tokens):
        past = {name: np.zeros(NETWORK.cache, "float32") for name in NETWORK.caches}
        found, feed, length = [], list(prompt), 0
        for _ in range(tokens):
            places = np.arange(length, length + len(feed))[None]
            logits, *now = session.run(None, {"input_ids": np.array([feed]), "position_ids": places, **past})
            past, length = dict(zip(NETWORK.caches, now)), length + len(feed)
            feed = [int(logits[0, -1].argmax())]
            found += feed
        return found, past

    return choose


def test_ids_are_those_of_onnxruntime(model, greedy):
    decoder = sm.Decoder(model)
    assert decoder.capacity == NETWORK.capacity
    for prompt in PROMPTS:
        assert decoder.generate(prompt, 8) == greedy(prompt, 8)[0]
        assert decoder.length == len(prompt) + 7


def test_a_token_writes_its_rows_and_nothing_else(model, greedy):
    """Every cache before and after each step: the rows of the step differ, and no other number."""
    session, length = model.session(), 3
    _, past = greedy([1, 2, 3], 1)
    for name, array in past.items():
        session.vm.caches.put(name, array)
    at = {name: tensor.data_ptr() for name, tensor in session.caches.items()}
    for count in (1, 4, 1):
        before = {name: tensor.numpy() for name, tensor in session.caches.items()}
        ids, places = np.full((1, count), 9), np.arange(length, length + count)[None]
        (logits,) = session.run(ids, places)
        assert logits.shape == (1, count, NETWORK.vocabulary)
        length += count
        for name, tensor in session.caches.items():
            differs = tensor.numpy() != before[name]
            assert differs.sum() == NETWORK.key_heads * count * NETWORK.head
            assert np.flatnonzero(differs.any((0, 1, 3))).tolist() == places[0].tolist()
    assert at == {name: tensor.data_ptr() for name, tensor in session.caches.items()}


def test_run_whole_is_the_file(model, path):
    """With the caches as inputs and outputs, as `verify` compares them; they are put there before each run."""
    random = np.random.default_rng(0)
    inputs = {"input_ids": np.array([[3]]), "position_ids": np.array([[6]])}
    inputs |= {name: random.standard_normal(NETWORK.cache).astype("float32") for name in NETWORK.caches}
    want = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)
    for given in (inputs, list(inputs.values()), inputs):
        got = model.run_whole(given)
        assert len(got) == len(want)
        for ours, theirs in zip(got, want):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"Cache 'past_key_values\.0\.key' has no array"):
        model.run_whole({"input_ids": inputs["input_ids"], "position_ids": inputs["position_ids"]})
    with pytest.raises(UserError, match="float32 1x2x16x4, and the array is float32 1x2x3x4"):
        model.run_whole({**inputs, NETWORK.caches[0]: np.zeros((1, 2, 3, 4), "float32")})


def test_a_full_cache_is_refused_and_nothing_is_written(model):
    decoder = sm.Decoder(model)
    decoder.feed([1] * 14)
    before = {name: tensor.numpy() for name, tensor in decoder._session.caches.items()}
    with pytest.raises(UserError, match="The caches have 16 rows, and 14 are taken, and 3 more do not fit"):
        decoder.feed([1, 2, 3])
    with pytest.raises(UserError, match="The caches have 16 rows, and 17 more do not fit"):
        list(decoder.tokens([1] * 12, 6))
    assert decoder.length == 14
    assert all((tensor.numpy() == before[name]).all() for name, tensor in decoder._session.caches.items())
    decoder.feed([1, 2])
    with pytest.raises(UserError, match="and 1 more do not fit"):
        decoder.feed([1])


@pytest.mark.parametrize("wrong", ([], [[]], [[[1]]], [0.5], [-1]))
def test_what_is_no_token_is_refused(model, wrong):
    decoder = sm.Decoder(model)
    with pytest.raises(UserError, match=r"Tokens are a list|is no id of a token"):
        decoder.feed(wrong)
    assert decoder.length == 0


def test_a_second_thread_is_refused_and_has_a_decoder_of_its_own(model, greedy):
    first, second, said = sm.Decoder(model), sm.Decoder(model), []
    tokens = first.tokens([1, 2, 3], 4)
    found = [next(tokens)]

    def other():
        with pytest.raises(UserError, match="in use") as error:
            first.feed([1])
        said.append(str(error.value))
        said.append(second.generate([5], 4))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "make a decoder for each thread" in said[0] and said[1] == greedy([5], 4)[0]
    assert found + list(tokens) == greedy([1, 2, 3], 4)[0]


def test_a_seed_repeats_and_a_stop_ends(model):
    decoder = sm.Decoder(model)
    drawn = [decoder.generate([1, 2], 8, temperature=1.5, top_k=30, top_p=0.9, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    whole = decoder.generate([5], 8)
    assert decoder.generate([5], 8, stop=[whole[2]]) == whole[: whole.index(whole[2]) + 1]


def test_sampling():
    scores, random = np.log(np.array([0.1, 0.5, 0.15, 0.25])), np.random.default_rng(0)
    draw = lambda **how: [Sampling(**how).token(scores, random) for _ in range(2000)]  # noqa: E731
    assert set(draw()) == {1}
    shares = np.bincount(draw(temperature=1), minlength=4) / 2000
    np.testing.assert_allclose(shares, [0.1, 0.5, 0.15, 0.25], atol=0.05)
    assert set(draw(temperature=1, top_k=2)) == {1, 3}
    assert set(draw(temperature=1, top_p=0.5)) == {1}
    assert set(draw(temperature=1, top_p=0.8)) == {1, 2, 3}
    for wrong in ({"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}):
        with pytest.raises(UserError):
            Sampling(**wrong)


def test_a_model_without_caches_is_no_decoder():
    compiled = sm.compile(sm.from_onnx(Update("where", (1, 2, 4, 2), 2, 1).model()))
    with pytest.raises(UserError, match="compile it with --cache"):
        sm.Decoder(compiled)


def test_a_model_in_which_no_cache_is_found_is_refused():
    model = Update("where", (1, 2, 4, 2), 2, 1).model()
    next(each for each in model.graph.node if each.op_type == "Equal").op_type = "Greater"
    with pytest.raises(UserError, match="so it has no caches to keep"):
        sm.compile(sm.from_onnx(model), options=sm.Options(caches=True))


def test_caches_that_grow_in_the_file(tmp_path, capsys):
    """The command line, and ids beside ONNX Runtime, whose caches grow."""
    network, path, folder = Decoder(layers=1, form=CONCAT), tmp_path / "grows.onnx", tmp_path / "grows"
    onnx.save(network.model(), path)
    plain = ("--no-schedule", "--no-fuse-attention", "--no-tuned", "--no-profiles", "--cache", "auto:16")
    assert main(["compile", str(path), "-o", str(folder), *plain]) == 0
    assert main(["verify", str(path), *plain]) == 0
    capsys.readouterr()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    batch, heads, _, head = network.cache
    past = {name: np.zeros((batch, heads, 0, head), "float32") for name in network.caches}
    found, token, prompt = [], 5, [2, 7]
    for place in range(12):
        mask = np.ones((1, place + 1), "int64")
        given = {"input_ids": np.array([[token]]), "position_ids": np.array([[place]]), "attention_mask": mask}
        logits, *now = session.run(None, given | past)
        past = dict(zip(network.caches, now))
        token = prompt.pop(0) if prompt else int(logits[0, -1].argmax())
        found += [] if place < 2 else [token]
    decoder = sm.Decoder(folder)
    assert decoder.generate([5, 2, 7], 10) == found
    for name, array in past.items():
        np.testing.assert_allclose(decoder._session.caches[name].numpy()[:, :, :12], array, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"give caches that grow by Concat a number of rows, as in --cache auto:2048"):
        shapes = dict.fromkeys(network.caches, (1, 2, 3, 4))
        sm.compile(sm.from_onnx(path, {**shapes, "attention_mask": (1, 4)}), options=sm.Options(caches=True))


def test_other_inputs_are_given_with_each_token():
    """A cache that grows, no positions in the file, and a bias that stays: the ids of ONNX Runtime."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
    decoder (int64[1, n] decoder_input_ids, float[1, past, 5] past, float[5] bias)
      => (float[1, n, 5] logits, float[1, all, 5] present) <int64[1] last = {1}> {
      depth = Constant<value = int64 {5}>()
      pair = Constant<value = float[2] {0.0, 1.0}>()
      rows = OneHot(decoder_input_ids, depth, pair)
      present = Concat<axis = 1>(past, rows)
      turned = Transpose<perm = [0, 2, 1]>(present)
      scores = MatMul(rows, turned)
      w = Softmax(scores)
      mixed = MatMul(w, present)
      counted = Shape<start = 1, end = 2>(present)
      float_count = Cast<to = 1>(counted)
      turn = Mod<fmod = 1>(float_count, three)
      biased = Mul(bias, turn)
      logits = Add(mixed, biased)
    }""".replace("{1}> {", "{1}, float[1] three = {3}> {")
    )
    bias = np.array([0.1, 0.5, -0.2, 0.4, 0.3], "float32")
    mod = sm.from_onnx(model, {"decoder_input_ids": (1, 1)}, rows=17)
    compiled = sm.compile(mod, options=sm.Options(caches=True, schedule=False, fuse_attention=False))
    with pytest.raises(UserError, match=r"'bias' of the model is known neither as tokens.* --ids bias"):
        sm.Decoder(compiled)
    with pytest.raises(UserError, match="has no input 'nothing', for which an array is given"):
        sm.Decoder(compiled, others={"bias": bias, "nothing": bias})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    past, token, want = np.zeros((1, 0, 5), "float32"), 2, []
    for _ in range(12):
        logits, past = session.run(None, {"decoder_input_ids": np.array([[token]]), "past": past, "bias": bias})
        token = int(logits[0, -1].argmax())
        want.append(token)
    assert sm.Decoder(compiled, others={"bias": bias}).generate([2], 12) == want and len(set(want)) > 1


def test_sizes_must_have_the_same_caches():
    modules = [sm.from_onnx(Update("where", (1, 2, 4, 2), 2, 1).model()) for _ in range(2)]
    other = Update("where", (1, 2, 4, 3), 2, 1).model()
    next(each for each in other.graph.node if each.op_type == "Equal").op_type = "Greater"
    with pytest.raises(UserError, match="'past' can be caches at some of the model's sizes only"):
        sm.compile(with_sizes([modules[0], sm.from_onnx(other)]), options=sm.Options(caches=True))
    wider = sm.from_onnx(Update("where", (1, 2, 4, 3), 2, 1).model())
    with pytest.raises(UserError, match="Cache 'past' has the shape 1x2x4x2 in one size of the model and 1x2x4x3"):
        sm.Decoder(sm.compile(with_sizes([modules[1], wider]), options=sm.Options(caches=True)))


def test_what_has_no_caches_yet_is_refused():
    mod = sm.from_onnx(Update("where", (1, 2, 4, 2), 2, 1).model())
    with pytest.raises(UserError, match="memory budget"):
        sm.compile(mod, options=sm.Options(caches=True, memory_budget=10**6))


def test_inputs_must_be_known():
    options = sm.Options(caches={"past": "present"})
    compiled = sm.compile(sm.from_onnx(Update("where", (1, 2, 4, 2), 2, 1).model()), options=options)
    with pytest.raises(UserError, match="Input 'new' of the model is known neither as tokens"):
        sm.Decoder(compiled)


def test_generate_on_the_command_line(folder, greedy, capsys):
    def said(*arguments):
        capsys.readouterr()
        return main(["generate", str(folder), *arguments]), *capsys.readouterr()

    code, out, _ = said("--prompt-ids", "1,2,3", "--tokens", "5", "--json")
    assert code == 0 and f'"ids": {greedy([1, 2, 3], 5)[0]}' in " ".join(out.split()).replace("[ ", "[").replace(
        " ]", "]"
    )
    code, out, _ = said("--prompt-ids", "1,2,3", "--tokens", "5")
    assert code == 0 and out.startswith(",".join(map(str, greedy([1, 2, 3], 5)[0])))
    for words, arguments in (
        ("must be whole numbers with commas", ("--prompt-ids", "1;2", "--tokens", "5")),
        ("30 more do not fit", ("--prompt-ids", "1", "--tokens", "30")),
        ("has no input 'tokens'", ("--prompt-ids", "1", "--tokens", "3", "--ids", "tokens")),
    ):
        code, out, err = said(*arguments)
        assert code == 2 and not out and words in err


def test_other_commands_know_a_folder_with_caches_or_refuse_it(folder, capsys):
    manifest = json.loads((folder / "manifest.json").read_text())
    pairs = [{"input": each, "output": each.replace("past_key_values", "present")} for each in NETWORK.caches]
    assert manifest["format"] == 9 and manifest["caches"] == [{**each, "axis": 2} for each in pairs]
    assert main(["run", str(folder), "--repeat", "1"]) == 0
    assert "present.0.value" in capsys.readouterr().out
    assert main(["inspect", str(folder)]) == 0
    assert "past_key_values.0.key, given back as present.0.key" in capsys.readouterr().out
    for caches in ({"caches": manifest["caches"]}, {"caches": manifest["sizes"][0]["caches"]}):
        with pytest.raises(UserError, match="keeps caches between inferences"):
            require_no_caches(folder, caches)

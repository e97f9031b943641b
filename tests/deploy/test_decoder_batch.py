# SPDX-License-Identifier: Apache-2.0
"""Several sequences at once: each writes what it writes alone, in ONNX Runtime."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import smartmem_tvm as sm
from decoded_alone import PLAIN, alone, compiled
from smartmem_tvm import UserError
from smartmem_tvm.cli import main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from decoder_network import CONCAT, ELEMENTS, ND, TENSOR, WHERE, Decoder

SWITCHES = ("--no-schedule", "--no-fuse-attention", "--no-tuned", "--no-profiles")


@pytest.mark.parametrize(("form", "seed"), [(WHERE, 0), (ELEMENTS, 1), (ND, 2), (TENSOR, 3)])
def test_sequences_at_random_are_those_of_each_alone(form, seed):
    """Batch, sizes, lengths of prompts, how many there are, and the token that ends a sequence."""
    random = np.random.default_rng([51, seed])
    network = Decoder(layers=1, tokens="tokens", form=form, batch=int(random.integers(2, 5)))
    sizes = (1,) if form == WHERE else (1, int(random.integers(2, 6)))
    decoder = sm.Decoder(compiled(network, sizes))
    assert decoder.sequences == network.batch and decoder.capacity == 16
    for _ in range(3):
        count, tokens = int(random.integers(1, network.batch + 1)), int(random.integers(1, 10))
        prompts = [random.integers(0, 61, random.integers(1, 17)).tolist() for _ in range(count)]
        want = [alone(network, each, min(tokens, 17 - len(each))) for each in prompts]  # full caches end a sequence
        assert decoder.generate(prompts, tokens) == want, (prompts, tokens)
        stop = [want[0][len(want[0]) // 2]]
        ends = [next((at + 1 for at, token in enumerate(each) if token in stop), len(each)) for each in want]
        assert decoder.generate(prompts, tokens, stop=stop) == [each[:end] for each, end in zip(want, ends)]


@pytest.fixture(scope="module")
def three():
    """Three sequences, one or four tokens at a time."""
    network = Decoder(layers=1, tokens="tokens", form=TENSOR, batch=3)
    return network, compiled(network, (1, 4))


def test_a_sequence_without_tokens_keeps_its_rows(three):
    """Also one whose caches are full, and one that begins again beside the others."""
    network, model = three
    decoder = sm.Decoder(model)
    first = decoder.feed([[1, 2, 3, 4, 5], [7], []])
    assert first.shape == (3, 61) and np.isnan(first[2]).all() and decoder.lengths == [5, 1, 0] and decoder.length == 5
    held = {name: tensor.numpy() for name, tensor in decoder._session.caches.items()}
    scores = decoder.feed([[], [8], [9] * 16])
    assert decoder.lengths == [5, 2, 16]
    np.testing.assert_array_equal(scores[0], first[0])
    for name, tensor in decoder._session.caches.items():
        np.testing.assert_array_equal(tensor.numpy()[0, :, :5], held[name][0, :, :5])
    full = {name: tensor.numpy()[2] for name, tensor in decoder._session.caches.items()}
    with pytest.raises(UserError, match="16 rows, and 16 are taken, and 1 more do not fit"):
        decoder.feed([[1], [1], [1]])
    assert decoder.lengths == [5, 2, 16]
    scores = decoder.feed([[6], [9]])
    for name, tensor in decoder._session.caches.items():
        np.testing.assert_allclose(tensor.numpy()[2], full[name], rtol=1e-5, atol=1e-6)
    assert [int(scores[0].argmax())] == alone(network, [1, 2, 3, 4, 5, 6], 1)
    assert [int(scores[1].argmax())] == alone(network, [7, 8, 9], 1)
    decoder.reset(2)
    scores = decoder.feed([[], [], [3, 4]])
    assert decoder.lengths == [6, 3, 2] and [int(scores[2].argmax())] == alone(network, [3, 4], 1)
    with pytest.raises(UserError, match="no sequence 3"):
        decoder.reset(3)


def test_one_list_is_the_first_sequence(three):
    network, model = three
    decoder = sm.Decoder(model)
    assert decoder.generate([5, 6], 4) == alone(network, [5, 6], 4)
    assert decoder.feed([1]).shape == (61,) and decoder.lengths == [6, 0, 0]


def test_seeds_of_sequences(three):
    _, model = three
    decoder, how = sm.Decoder(model), {"temperature": 1.5, "top_k": 20}
    both = decoder.generate([[1, 2], [1, 2]], 8, seed=4, **how)
    assert both == [decoder.generate([1, 2], 8, seed=seed, **how) for seed in (4, 5)] and both[0] != both[1]


def test_what_is_no_batch_of_prompts_is_refused(three):
    decoder = sm.Decoder(three[1])
    for prompts, words in (
        ([[1], []], "Prompt 1 has no tokens"),
        ([[1]] * 4, "4 lists of tokens are given, and the model writes 3 sequences at once"),
        ([[1], [2] * 17], "16 rows, and 17 more do not fit"),
        ([[1], [-2]], "-2 is no id of a token"),
        ([[], []], "Prompt 0 has no tokens"),
    ):
        with pytest.raises(UserError, match=words):
            decoder.generate(prompts, 3)
    with pytest.raises(UserError, match="at least one whole number"):
        decoder.feed([[], []])
    assert decoder.lengths == [0, 0, 0]


def test_caches_that_grow_are_written_at_one_place():
    """Sequences of one length are right; others are refused, as the file has one length for all."""
    network = Decoder(layers=1, form=CONCAT, batch=2)
    decoder = sm.Decoder(compiled(network, (1,), rows=16))
    prompts = [[5, 2, 7], [1, 1, 8]]
    assert decoder.generate(prompts, 6) == [alone(network, each, 6) for each in prompts]
    stop = decoder.generate(prompts, 6)[0][1]
    assert decoder.generate(prompts, 6, stop=[stop])[0] == alone(network, prompts[0], 2)
    for refused in (lambda: decoder.generate([[1, 2], [3]], 4), lambda: decoder.reset(1)):
        with pytest.raises(UserError, match="writes the rows of its 2 sequences at one place"):
            refused()


@pytest.mark.parametrize("floats", (False, True))
def test_masks_of_several_sequences(floats):
    """A table of what each token sees, and a line of the rows that are taken, as inputs of the model."""
    kind, shape = ("float", "2, 1, n, 8") if floats else ("int64", "2, 8")
    mask = "wide = Squeeze(mask, one)" if floats else "low = Cast<to = 1>(mask)"
    text = f"""<ir_version: 10, opset_import: ["": 24]>
    decoder (int64[2, n] input_ids, int64[2] position, {kind}[{shape}] mask, float[2, 8, 3] past)
      => (float[2, n, 3] logits, float[2, 8, 3] present)
    <float[3, 3] table = {{0, 1, 0, 0, 0, 1, 1, 0, 0}}, int64[1] one = {{1}}, float one_number = {{1}},
     float most = {{1e9}}> {{
      rows = Gather(table, input_ids)
      present = TensorScatter<axis = 1>(past, rows, position)
      turned = Transpose<perm = [0, 2, 1]>(present)
      alike = MatMul(rows, turned)
      {mask}
      {"" if floats else "less = Sub(low, one_number)"}
      {"" if floats else "scaled = Mul(less, most)"}
      {"" if floats else "wide = Unsqueeze(scaled, one)"}
      masked = Add(alike, wide)
      weights = Softmax(masked)
      like = MatMul(weights, present)
      logits = Add(like, rows)
    }}"""
    model = onnx.parser.parse_model(text)
    sizes = [{"input_ids": (2, n), **({"mask": (2, 1, n, 8)} if floats else {})} for n in ((1, 2) if floats else (1,))]
    options = sm.Options(caches=True, **PLAIN)
    decoder = sm.Decoder(sm.compile(sm.from_onnx(model, shapes=sizes), options=options))
    table, found = np.eye(3, dtype="float32")[[1, 2, 0]], []
    for prompt in ([0, 1, 2, 1], [2]):
        rows = table[prompt]
        scores = rows @ rows[-1]
        weights = np.exp(scores) / np.exp(scores).sum()
        found.append(weights @ rows + rows[-1])
    np.testing.assert_allclose(decoder.feed([[0, 1, 2, 1], [2]]), found, rtol=1e-5)


def test_generate_on_the_command_line(tmp_path, capsys):
    network = Decoder(layers=1, form=TENSOR, batch=2)
    path, folder = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(network.model(), path)
    assert main(["compile", str(path), "-o", str(folder), "--cache", "auto", *SWITCHES]) == 0
    caches = json.loads((folder / "manifest.json").read_text())["caches"]
    assert {each["sequences"] for each in caches} == {2}

    def said(*arguments):
        capsys.readouterr()
        return main(["generate", str(folder), *arguments]), *capsys.readouterr()

    want = [alone(network, each, 5) for each in ([1, 2, 3], [4])]
    both = ("--prompt-ids", "1,2,3", "--prompt-ids", "4", "--tokens", "5")
    code, out, _ = said(*both, "--json")
    data = json.loads(out)
    assert code == 0 and data["ids"] == want and data["prompt_ids"] == [[1, 2, 3], [4]]
    code, out, _ = said(*both)
    assert code == 0 and out.splitlines()[:2] == [",".join(map(str, each)) for each in want]
    code, out, _ = said("--prompt-ids", "4", "--tokens", "5", "--json")
    assert code == 0 and json.loads(out)["ids"] == want[1]
    code, out, err = said("--prompt-ids", "4", *both)
    assert code == 2 and not out and "3 lists of tokens are given" in err

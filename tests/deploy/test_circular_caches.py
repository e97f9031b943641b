# SPDX-License-Identifier: Apache-2.0
"""Sequences longer than circular caches have rows: the ids are those of a cache with room for all tokens."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import decoded_alone
import smartmem_tvm as sm
from decoded_alone import compiled
from smartmem_tvm import UserError
from smartmem_tvm.cli import main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from decoder_network import CIRCULAR, Decoder


def alone(network, prompt, tokens):
    """Return what ONNX Runtime chooses for one sequence, with room for all of its tokens."""
    return decoded_alone.alone(network, prompt, tokens, capacity=len(prompt) + tokens)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.device) for seed in (0, 2, 3))])
def test_sequences_longer_than_the_caches(seed):
    """Windows up to the capacity, prompts in parts and beyond the caches, and a second sequence after the first."""
    random = np.random.default_rng([51, seed])
    capacity = int(random.integers(5, 20))
    network = Decoder(
        layers=1, tokens="tokens", form=CIRCULAR, capacity=capacity, window=int(random.integers(1, capacity + 1))
    )
    decoder = sm.Decoder(compiled(network, (1, int(random.integers(2, 5)))))
    assert decoder.capacity == capacity
    for _ in range(3):
        prompt = random.integers(0, 61, random.integers(1, 2 * capacity)).tolist()
        tokens = int(random.integers(1, 2 * capacity))
        assert decoder.generate(prompt, tokens) == alone(network, prompt, tokens), (network, prompt, tokens)
        assert decoder.length == len(prompt) + tokens - 1


@pytest.mark.device
def test_several_sequences():
    """One goes around its caches while the others wait, have ended or begin again."""
    network = Decoder(layers=1, tokens="tokens", form=CIRCULAR, capacity=8, window=8, batch=3)
    decoder = sm.Decoder(compiled(network, (1, 3)))
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [7], [5, 6, 7]]
    want = [alone(network, each, 14) for each in prompts]
    assert decoder.generate(prompts, 14) == want
    decoder.reset()
    decoder.feed([prompts[0] + want[0][:9], [7], [5]])
    decoder.feed([[], want[1][:4], [6, 7]])
    decoder.feed([[], want[1][4:9], []])
    scores = decoder.feed([want[0][9:10], [], want[2][:1]])
    assert decoder.lengths == [20, 10, 4]
    assert [int(scores[0].argmax()), int(scores[2].argmax())] == [want[0][10], want[2][1]]
    decoder.reset(0)
    assert int(decoder.feed([[7], [], []])[0].argmax()) == want[1][0]


def test_generate_on_the_command_line(tmp_path, capsys):
    """The folder knows which caches are circular; with a window that is shorter than the caches."""
    network = Decoder(layers=1, form=CIRCULAR, capacity=40, window=9)
    path, folder = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(network.model(), path)
    assert main(["compile", str(path), "-o", str(folder), "--cache", "auto", "--no-fuse-attention"]) == 0
    caches = json.loads((folder / "manifest.json").read_text())["caches"]
    assert [each["circular"] for each in caches] == [True, True]
    capsys.readouterr()
    assert main(["generate", str(folder), "--prompt-ids", "3,1,4", "--tokens", "60", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == alone(network, [3, 1, 4], 60)


def test_a_cache_that_is_not_circular_is_the_end():
    """One cache goes around after 8 rows, and another one ends after 12."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 24]>
    decoder (int64[1, 1] input_ids, int64[1, 1] position_ids, float[1, 8, 2] past_a, float[1, 12, 2] past_b)
      => (float[1, 1, 4] logits, float[1, 8, 2] present_a, float[1, 12, 2] present_b)
    <float[3, 2] table = {1, 2, 4, 8, 16, 32}, int64[1] one = {1}> {
      at = Squeeze(position_ids, one)
      rows = Gather(table, input_ids)
      present_a = TensorScatter<axis = 1, mode = "circular">(past_a, rows, at)
      present_b = TensorScatter<axis = 1>(past_b, rows, at)
      few = ReduceSum(present_a, one)
      all = ReduceSum(present_b, one)
      logits = Concat<axis = 2>(few, all)
    }""")
    decoder = sm.Decoder(sm.compile(sm.from_onnx(model), options=sm.Options(caches=True)))
    table, ids = np.array([[1, 2], [4, 8], [16, 32]], "float32"), [0, 1, 2, 2, 1, 0, 0, 1, 2, 0, 1, 1]
    for count in range(1, 13):
        want = np.concatenate([table[ids[max(0, count - 8) : count]].sum(0), table[ids[:count]].sum(0)])
        np.testing.assert_allclose(decoder.feed([ids[count - 1]]), want, rtol=1e-6)
    with pytest.raises(UserError, match="12 rows, and 12 are taken, and 1 more do not fit"):
        decoder.feed([0])
    assert (decoder.capacity, decoder.length) == (8, 12)


def test_an_interrupted_feed_keeps_what_it_has_written(monkeypatch):
    """Rows of tokens before were written over, so that the sequence cannot be what it was."""
    network = Decoder(layers=1, form=CIRCULAR, capacity=8, window=8)
    decoder = sm.Decoder(compiled(network, (1,)))
    ids, run = [(7 * each) % 61 for each in range(14)], decoder._computed
    decoder.feed(ids[:10])

    def interrupted(step):
        if step.first[0] == 12:
            raise KeyboardInterrupt
        return run(step)

    monkeypatch.setattr(decoder, "_computed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoder.feed(ids[10:])
    monkeypatch.undo()
    assert decoder.length == 12
    assert int(decoder.feed(ids[12:]).argmax()) == alone(network, ids, 1)[0]


def test_without_a_size_of_one_token_the_rows_are_the_end():
    network = Decoder(layers=1, tokens="tokens", form=CIRCULAR, capacity=8, window=8)
    decoder = sm.Decoder(compiled(network, (2,)))
    decoder.feed([1, 2, 3, 4, 5, 6, 7, 8])
    with pytest.raises(UserError, match="compile it for 1 token as well"):
        decoder.feed([1, 2])
    assert decoder.length == 8

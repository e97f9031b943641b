# SPDX-License-Identifier: Apache-2.0
"""Models that see the rows behind a token, and models that do not: both write what ONNX Runtime does, in parts."""

import functools

import numpy as np
import onnxruntime
import pytest

import smartmem_tvm as sm
from rows_behind import HIDDEN, LAST, ROWS, SEEN, WORDS, network

PLAIN = {"schedule": False, "fuse_attention": False}


@functools.cache
def compiled(form: str, batch: int, scores: str = "all"):
    """Return a network for one and for four tokens."""
    shapes = [dict.fromkeys(("input_ids", "position_ids"), (batch, size)) for size in (1, 4)]
    mod = sm.from_onnx(network(form, batch, scores), shapes=shapes)
    return sm.compile(mod, options=sm.Options(caches=True, **PLAIN))


def in_parts(prompt, tokens, parts, form, scores):
    """Return what ONNX Runtime chooses when a prompt is read in parts of these sizes."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # it warns of each copy of a cache
    session = onnxruntime.InferenceSession(network(form, 1, scores).SerializeToString(), settings)
    past = {f"past_{layer}": np.zeros((1, ROWS, 3), "float32") for layer in range(2)}
    found, feed, length = [], list(prompt), 0
    while len(found) < tokens:
        count = next(each for each in parts if each <= len(feed))
        places = np.arange(length, length + count)[None]
        logits, *now = session.run(None, {"input_ids": np.array([feed[:count]]), "position_ids": places, **past})
        past, length, feed = dict(zip(past, now)), length + count, feed[count:]
        if not feed:
            found.append(int(logits[0, -1].argmax()))
            feed = [found[-1]]
    return found


@pytest.mark.parametrize("scores", ("all", "last"))
@pytest.mark.parametrize(("form", "rows", "padding"), [(HIDDEN, True, True), (SEEN, False, False), (LAST, True, False)])
@pytest.mark.pairwise
def test_prompts_at_random(form, rows, padding, scores):
    """Also of two sequences at once, of which one gets no tokens, and again in rows that others were in."""
    random = np.random.default_rng([len(form), len(scores)])
    for batch in (1, 2):
        decoder = sm.Decoder(compiled(form, batch, scores))
        for length in (3, None, None, None):
            lengths = [length or int(random.integers(1, 9)) for _ in range(batch)]
            prompts = [random.integers(0, WORDS, each).tolist() for each in lengths]
            whole = form == HIDDEN  # in any parts
            want = [in_parts(each, 4, (1,) if whole else (4, 1), form, scores) for each in prompts]
            assert decoder.generate(prompts, 4) == want, (prompts, batch)
        hides = decoder._session.vm.caches.plan.hides
        assert all(found == (padding if padded else rows) for (_, padded), found in hides.items()), hides
        assert hides.get((decoder._inputs.sizes[4], True)) is (padding if scores == "all" else None)
        assert (decoder._inputs.sizes[1], False) in hides


def test_a_model_is_tested_once(monkeypatch):
    """Sessions of a model share what was found, and a decoder without padding and old rows tests nothing."""
    model = compiled(HIDDEN, 1)
    sm.Decoder(model)._session.vm.caches.plan.hides.clear()  # what other tests found
    from smartmem_tvm.deploy import hidden_rows

    tests, first = [], hidden_rows.HiddenRows._is_same_with_noise
    monkeypatch.setattr(hidden_rows.HiddenRows, "_is_same_with_noise", lambda *given: tests.append(1) or first(*given))
    sm.Decoder(model).generate([1, 2, 3, 4], 3)
    assert not tests
    for _ in range(3):
        decoder = sm.Decoder(model)
        decoder.generate([1, 2, 3], 4)
        decoder.generate([4, 5], 4)
    assert len(tests) == 2  # of 4 tokens with padding, and of one with padding behind it

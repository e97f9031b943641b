# SPDX-License-Identifier: Apache-2.0
"""Models that see the rows behind a token, and models that do not: both write what ONNX Runtime does, in parts."""

import numpy as np
import onnx
import onnxruntime
import pytest

import smartmem_tvm as sm

ROWS, WORDS = 12, 7
HIDDEN, SEEN, LAST = "hidden", "seen", "hidden from the last token on"
PLAIN = {"schedule": False, "fuse_attention": False}


def network(form: str, batch: int, scores: str = "all") -> onnx.ModelProto:
    """Two layers that add the rows that are alike, of which a mask leaves some, or none is left out."""
    masks = {
        HIDDEN: "seen = LessOrEqual(numbers, places)",
        SEEN: "seen = GreaterOrEqual(numbers, nothing)",
        LAST: "last = ReduceMax<keepdims = 1>(places, one)\n seen = LessOrEqual(numbers, last)",
    }
    layer = """
      present_{0} = TensorScatter<axis = 1>(past_{0}, {1}, at)
      turned_{0} = Transpose<perm = [0, 2, 1]>(present_{0})
      alike_{0} = MatMul({1}, turned_{0})
      kept_{0} = Mul(alike_{0}, weights)
      mixed_{0} = MatMul(kept_{0}, present_{0})
      added_{0} = Add(mixed_{0}, {1})
      bounded_{0} = Tanh(added_{0})
    """
    result = "logits = MatMul(bounded_1, back)"
    if scores == "last":
        result = "tail = Slice(bounded_1, minus, end, one)\n logits = MatMul(tail, back)"
    text = f"""<ir_version: 10, opset_import: ["": 24]>
    decoder (int64[{batch}, n] input_ids, int64[{batch}, n] position_ids, float[{batch}, {ROWS}, 3] past_0,
             float[{batch}, {ROWS}, 3] past_1)
      => (float[{batch}, m, {WORDS}] logits, float[{batch}, {ROWS}, 3] present_0, float[{batch}, {ROWS}, 3] present_1)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] minus = {{-1}}, int64[1] end = {{99}},
     int64 nothing = {{0}}, int64[{ROWS}] numbers = {{{", ".join(map(str, range(ROWS)))}}}> {{
      first = Slice(position_ids, zero, one, one)
      at = Squeeze(first, one)
      rows = Gather(table, input_ids)
      places = Unsqueeze(position_ids, two)
      {masks[form]}
      weights = Cast<to = 1>(seen)
      {layer.format(0, "rows")} {layer.format(1, "bounded_0")} {result}
    }}"""
    model = onnx.parser.parse_model(text)
    table = (np.random.default_rng(0).standard_normal((WORDS, 3)) / 3).astype("float32")  # tanh of more is 1
    back = np.random.default_rng(1).standard_normal((3, WORDS)).astype("float32")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(*each) for each in ((table, "table"), (back, "back")))
    return model


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
    random, sizes = np.random.default_rng([len(form), len(scores)]), (1, 4)
    for batch in (1, 2):
        shapes = [dict.fromkeys(("input_ids", "position_ids"), (batch, size)) for size in sizes]
        mod = sm.from_onnx(network(form, batch, scores), shapes=shapes)
        decoder = sm.Decoder(sm.compile(mod, options=sm.Options(caches=True, **PLAIN)))
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
    shapes = [dict.fromkeys(("input_ids", "position_ids"), (1, size)) for size in (1, 4)]
    model = sm.compile(sm.from_onnx(network(HIDDEN, 1), shapes=shapes), options=sm.Options(caches=True, **PLAIN))
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

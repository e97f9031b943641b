# SPDX-License-Identifier: Apache-2.0
"""Caches that grow get a capacity: the rewritten graph beside the file, in ONNX Runtime, for all lengths."""

import random
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from smartmem_tvm import UserError
from smartmem_tvm.cli.model import parse_caches, parse_rows
from smartmem_tvm.frontend.sampled_sizes import Sampled
from smartmem_tvm.frontend.verbs import read_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from decoder_network import CONCAT, Decoder

ROWS = 9


def run(model, arrays):
    """Return ONNX Runtime's results."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    model.weights.fill(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(arrays))


def check(source, shapes, rows=ROWS, lengths=None):
    """Compare the rewritten model with the file where the caches hold so many rows; what is behind them is random."""
    model = read_model(source, shapes, rows=rows)
    onnx.checker.check_model(model.proto)
    original, random_numbers = model.original, np.random.default_rng(0)
    for length in lengths or (0, 1, 4, rows - original.count):
        given = {}
        for name, (shape, dtype) in model.inputs.items():
            if name == original.positions:
                given[name] = np.broadcast_to(length + np.arange(shape[-1]), shape).astype(dtype)
            elif "int" in dtype:
                given[name] = random_numbers.integers(0, 8, shape).astype(dtype)
            else:
                given[name] = random_numbers.standard_normal(shape).astype(dtype)
        got, want = run(model, given), original.results(run, given)
        assert len(got) == len(want)
        for ours, theirs in zip(got, want, strict=True):
            assert np.isfinite(theirs).all()
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return model


def attention(body, inputs="", outputs="", results="", before="", axis=2, dims="1, 2, past, 3"):
    """Return a model with one cache of keys, which are values, too; `body` makes `w` from `scores`."""
    total = dims.replace("past", "total")
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    decoder (int64[1, n] input_ids, float[{dims}] past{inputs}) => (float[1, 2, n, 3] logits, float[{total}] present
    {outputs})
    <float[8, 6] table = {{{", ".join(str((7 * i) % 11 / 5 - 1) for i in range(48))}}}, int64[1] zero = {{0}},
     int64[1] one = {{1}}, int64[1] minus = {{-1}}, int64[4] split = {{1, -1, 2, 3}}, int64 scalar_0 = {{0}},
     int64 scalar_1 = {{1}}, int64 at_row = {{{axis}}}, float low = {{-10000}}> {{
      taken = Gather(table, input_ids)
      parted = Reshape(taken, split)
      q = Transpose<perm = [0, 2, 1, 3]>(parted)
      {before or "new = Identity(q)"}
      present = Concat<axis = {axis}>(past, new)
      {"keys = Identity(present)" if axis == 2 else "keys = Transpose<perm = [0, 1, 3, 2]>(present)"}
      turned = Transpose<perm = [0, 1, 3, 2]>(keys)
      scores = MatMul(q, turned)
      {body}
      logits = MatMul(w, keys)
      {results}
    }}""")


PLAIN = "w = Softmax(scores)"
CAUSAL = """
    past_shape = Shape(past)
    length = Gather(past_shape, at_row)
    ids_shape = Shape(input_ids)
    count = Gather(ids_shape, scalar_1)
    total_rows = Add(length, count)
    rows = Range(scalar_0, total_rows, scalar_1)
    places = Range(length, total_rows, scalar_1)
    place = Unsqueeze(places, one)
    hidden = Greater(rows, place)
    """
MASKED = CAUSAL + "chosen = Where(hidden, low, scores)\n w = Softmax(chosen)"
ADDED = CAUSAL + "cast = Cast<to = 1>(hidden)\n added = Mul(cast, low)\n sum = Add(scores, added)\n w = Softmax(sum)"


@pytest.mark.parametrize("tokens", (1, 3))
@pytest.mark.parametrize("body", (PLAIN, MASKED, ADDED), ids=("plain", "chosen", "added"))
def test_attention_with_masks(body, tokens):
    model = check(attention(body), {"input_ids": (1, tokens)})
    assert list(model.inputs) == ["input_ids", "past", "cache_position"]
    assert model.inputs["past"][0] == (1, 2, ROWS, 3)


def test_keys_that_are_transposed():
    before = "new = Transpose<perm = [0, 1, 3, 2]>(q)"
    check(attention(MASKED, before=before, axis=3, dims="1, 2, 3, past"), {"input_ids": (1, 2)})


def test_rows_of_a_table_that_depend_on_the_length():
    """As GPT-2 cuts its triangle: rows that end at the length, and as many columns as there are rows."""
    triangle = ", ".join("1" if column <= row else "0" for row in range(12) for column in range(12))
    body = f"""
    both = Shape(scores)
    last = Slice(both, minus, two_ends, zero)
    before = Slice(both, minus_2, minus, zero)
    first = Sub(last, before)
    triangle = Constant<value = int64[12, 12] {{{triangle}}}>()
    some = Slice(triangle, first, last, zero)
    square = Slice(some, zero, last, one)
    seen = Cast<to = 9>(square)
    chosen = Where(seen, scores, low)
    w = Softmax(chosen)"""
    body = "two_ends = Constant<value_ints = [4]>()\n minus_2 = Constant<value_ints = [-2]>()\n" + body
    check(attention(body), {"input_ids": (1, 3)}, rows=12)
    with pytest.raises(UserError, match=r"cannot be followed|does not grow"):
        check(attention(body), {"input_ids": (1, 3)}, rows=13)  # more rows than the table has


def test_positions_and_a_mask_are_the_programs_business():
    body = """
    sums = CumSum(attention_mask, scalar_1)
    less = Sub(sums, one)
    ends = Constant<value_ints = [9223372036854775807]>()
    ids_shape = Shape(input_ids)
    count = Slice(ids_shape, one, two, zero)
    start = Neg(count)
    places = Slice(less, start, ends, one)
    wide = Unsqueeze(places, ones)
    moved = Cast<to = 1>(wide)
    scaled = Div(moved, ten)
    more = Add(scores, scaled)
    seen = Cast<to = 9>(attention_mask)
    chosen = Where(seen, more, low)
    w = Softmax(chosen)"""
    constants = "two = Constant<value_ints = [2]>()\n ten = Constant<value_float = 10.0>()\n"
    constants += "ones = Constant<value_ints = [1, 3]>()\n"
    body = constants + body
    for tokens in (1, 3):
        model = check(attention(body, ", int64[1, total] attention_mask"), {"input_ids": (1, tokens)})
        assert "attention_mask" not in model.inputs


def test_the_network_of_the_benchmarks():
    network = Decoder(form=CONCAT, layers=1)
    model = check(network.model(), {"attention_mask": (1, 5)})
    assert list(model.inputs)[:2] == ["input_ids", "position_ids"]
    assert {node.op_type for node in model.proto.graph.node} >= {"ScatterND"}


def test_stacked_keys_and_values():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    decoder (int64[1, n] input_ids, float[2, 1, past, 3] past_0)
      => (float[1, n, 3] logits, float[2, 1, all, 3] present_0)
    <float[4, 3] table = {0, 1, 0, 0, 0, 1, 1, 0, 0, 2, 1, 1}, int64 first = {0}, int64 second = {1},
     int64[1] axis = {0}> {
      q = Gather(table, input_ids)
      old_keys = Gather<axis = 0>(past_0, first)
      old_values = Gather<axis = 0>(past_0, second)
      keys = Concat<axis = -2>(old_keys, q)
      values = Concat<axis = -2>(old_values, q)
      one = Unsqueeze(keys, axis)
      other = Unsqueeze(values, axis)
      present_0 = Concat<axis = 0>(one, other)
      sizes = Shape<start = 2, end = 3>(past_0)
      moved = Cast<to = 1>(sizes)
      turned = Transpose<perm = [0, 2, 1]>(keys)
      scores = MatMul(q, turned)
      w = Softmax(scores)
      mixed = MatMul(w, values)
      logits = Add(mixed, moved)
    }""")
    found = read_model(_small_ids(model), {"input_ids": (1, 2)}, rows=ROWS)
    assert list(found.inputs) == ["input_ids", "past_0.0", "past_0.1", "cache_position"]
    check(_small_ids(model), {"input_ids": (1, 2)})


def _small_ids(model):
    """Return the model with ids of a table of eight rows, as `check` draws them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    table = next(each for each in copy.graph.initializer if each.name == "table")
    array = onnx.numpy_helper.to_array(table)
    table.CopyFrom(onnx.numpy_helper.from_array(np.concatenate([array, -array]), "table"))
    return copy


REFUSED = {
    "sum": ("w = Identity(scores)", "MatMul .* adds up along the rows of a cache without a softmax"),
    "mean": ("m = ReduceMean<axes = [3]>(scores)\n d = Sub(scores, m)\n w = Softmax(d)", "ReduceMean .* works along"),
    "flat": (
        "flat = Reshape(scores, minus)\n back = Shape(scores)\n s = Reshape(flat, back)\n w = Softmax(s)",
        "Reshape .* lays rows of a cache beside other dimensions",
    ),
    "past": ("m = ReduceSum(past)\n d = Sub(scores, m)\n w = Softmax(d)", "ReduceSum .* reads a cache without"),
    "top": ("v, i = TopK(scores, one)\n d = Sub(scores, v)\n w = Softmax(d)", "TopK .* works along the rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_to_be_right_is_refused(case):
    body, reason = REFUSED[case]
    with pytest.raises(UserError, match=f"The caches of decoder grow and cannot get a capacity: {reason}"):
        read_model(attention(body), {"input_ids": (1, 2)}, rows=ROWS)


def test_other_refusals():
    weights = attention(PLAIN, outputs=", float[1, 2, n, total] weights", results="weights = Identity(w)")
    with pytest.raises(UserError, match="Output 'weights' of decoder grows with the caches and is none of them"):
        read_model(weights, {"input_ids": (1, 2)}, rows=ROWS)
    with pytest.raises(UserError, match="Caches of 3 rows have no room for 3 tokens at a time"):
        read_model(attention(PLAIN), {"input_ids": (1, 3)}, rows=3)
    with pytest.raises(UserError, match="leaves open how many tokens input 'input_ids' takes"):
        read_model(attention(PLAIN), rows=ROWS)
    for kind in ("float[1, 1, n, total]", "float[1, total]"):
        masked = attention("m = Add(scores, mask)\n w = Softmax(m)", f", {kind} mask")
        with pytest.raises(UserError, match="its input 'mask' is no list of ones, integers or booleans"):
            read_model(masked, {"input_ids": (1, 2)}, rows=ROWS)
    ends = "\n".join(f"{n} = Constant<value_ints = [{v}]>()" for n, v in (("least", -3), ("far", 999), ("rows", 2)))
    cut = attention(
        PLAIN, outputs=", float[1, 2, kept, 3] last", results=f"{ends}\n last = Slice(present, least, far, rows)"
    )
    with pytest.raises(
        UserError, match="Result 'last' of decoder is cut to its last rows by Slice, as caches of a window"
    ):
        read_model(cut, {"input_ids": (1, 2)}, rows=ROWS)
    with pytest.raises(UserError, match="has no cache that grows"):
        read_model(Decoder(layers=1).model(), rows=ROWS)


def test_random_attention():
    """Heads, masks, scales and the order of operators at random, beside ONNX Runtime."""
    draw = random.Random(3)
    for _ in range(12):
        tokens, rows = draw.choice((1, 2, 3, 5)), draw.choice((8, 11, 16, 17))
        body = draw.choice((PLAIN, MASKED, ADDED))
        if draw.random() < 0.5:
            body = body.replace("Softmax(scores)", "Softmax(s1)").replace("scores)\n w", "s1)\n w")
            body = body.replace("(scores, added)", "(s1, added)").replace("low, scores", "low, s1")
            body = "half = Constant<value_float = 0.5>()\n s1 = Mul(scores, half)\n" + body
        if draw.random() < 0.5:
            body = body.replace("w = Softmax", "w0 = Softmax") + "\n nan = IsNaN(w0)\n nought = Sub(low, low)\n"
            body += "fixed = Constant<value_float = 0.0>()\n w = Where(nan, fixed, w0)"
        transposed = draw.random() < 0.5
        more = {"before": "new = Transpose<perm = [0, 1, 3, 2]>(q)", "axis": 3, "dims": "1, 2, 3, past"}
        lengths = draw.sample(range(rows - tokens + 1), 3)
        check(attention(body, **(more if transposed else {})), {"input_ids": (1, tokens)}, rows, lengths)


def test_sizes_that_are_no_lines():
    """A size that is a line at none but some lengths is not taken for one."""

    def at(length):
        model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[p] x) => (float[q] y) <int64[1] ten = {10}, int64[1] zero = {0}> { y = Slice(x, zero, ten) }""")
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = length
        return model

    assert Sampled({each: at(each) for each in (3, 5, 8)}, "g").dims["y"] is not None
    assert Sampled({each: at(each) for each in (3, 8, 20)}, "g").dims["y"] is None


def test_the_option():
    assert parse_rows(["auto:2048"]) == 2048 and parse_caches(["auto:2048"]) is True
    assert parse_rows(["auto"]) is None and parse_rows(["a=b"]) is None and parse_rows([]) is None
    with pytest.raises(UserError, match="auto:many must be the names"):
        parse_caches(["auto:many"])

# SPDX-License-Identifier: Apache-2.0
"""A length that stays open: right beside ONNX Runtime for any number of positions, whatever lies behind them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import smartmem_tvm
from open_models import N, check, compiled, dims, drawn_chain, expected, model, sentence, weights
from smartmem_tvm import UserError
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.frontend.open_length import capacities
from smartmem_tvm.graph_report import graph_cost
from smartmem_tvm.ir.graph import read_log

_ROWS = [N, 4]
_CHANNELS = [1, 3, N]
REDUCED = {
    "mean": ([("ReduceMean", ["x"], "y", {"axes": [0]})], _ROWS, {}),
    "mean of all": ([("ReduceMean", ["x"], "y", {})], [N, 3, 2], {}),
    "maximum": ([("ReduceMax", ["x"], "y", {"axes": [0]})], _ROWS, {}),
    "minimum": ([("ReduceMin", ["x"], "y", {"axes": [0]})], _ROWS, {}),
    "squares": ([("ReduceSumSquare", ["x"], "y", {"axes": [0]})], _ROWS, {}),
    "softmax": ([("Softmax", ["x"], "y", {"axis": 0})], _ROWS, {}),
    "logarithm of softmax": ([("LogSoftmax", ["x"], "s", {"axis": 0}), ("Exp", ["s"], "y", {})], _ROWS, {}),
    "first": ([("Gather", ["x", "i"], "y", {"axis": 0})], _ROWS, {"i": np.array(0)}),
    "running sum": ([("CumSum", ["x", "zero"], "c", {}), ("Tanh", ["c"], "y", {})], _ROWS, {"zero": np.array(0)}),
    "products of pairs": (
        [("Transpose", ["x"], "t", {"perm": [1, 0]}), ("MatMul", ["x", "t"], "m", {}), ("MatMul", ["m", "x"], "y", {})],
        _ROWS,
        {},
    ),
    "the whole as one part": (
        [("Split", ["x", "whole"], "t", {"axis": 1}), ("ReduceMax", ["t"], "y", {"axes": [0]})],
        _ROWS,
        {"whole": np.array([4])},
    ),
    "maximum and mean of one tensor": (
        [
            ("Tanh", ["x"], "t", {}),
            ("ReduceMean", ["t"], "a", {"axes": [0]}),
            ("ReduceMax", ["t"], "b", {"axes": [0]}),
            ("Concat", ["a", "b"], "y", {"axis": 0}),
        ],
        _ROWS,
        {},
    ),
    "variance": ([("MeanVarianceNormalization", ["x"], "y", {"axes": [0]})], _ROWS, {}),
    "norm over the positions": (
        [
            ("ReduceMean", ["x"], "m", {"axes": [0]}),
            ("Sub", ["x", "m"], "c", {}),
            ("Mul", ["c", "c"], "q", {}),
            ("ReduceMean", ["q"], "v", {"axes": [0]}),
            ("Add", ["v", "epsilon"], "e", {}),
            ("Sqrt", ["e"], "r", {}),
            ("Div", ["c", "r"], "y", {}),
        ],
        _ROWS,
        {"epsilon": np.float32(1e-3)},
    ),
    "convolutions": (
        [
            ("Conv", ["x", "a"], "c", {"pads": [1, 1]}),
            ("Relu", ["c"], "r", {}),
            ("MaxPool", ["r"], "p", {"kernel_shape": [3], "pads": [1, 1]}),
            ("Conv", ["p", "b"], "d", {"pads": [4, 4], "dilations": [2]}),
            ("GlobalAveragePool", ["d"], "g", {}),
            ("Add", ["d", "g"], "y", {}),
        ],
        _CHANNELS,
        {"a": weights(4, 3, 3), "b": weights(4, 4, 5)},
    ),
    "a picture's width": (
        [("Conv", ["x", "k"], "c", {"pads": [1, 1, 1, 1], "strides": [2, 1]}), ("Relu", ["c"], "y", {})],
        [1, 3, 6, N],
        {"k": weights(4, 3, 3, 3)},
    ),
    "places in a table": (
        [
            ("Shape", ["x"], "s", {"start": 0, "end": 1}),
            ("Slice", ["table", "zero", "s", "zero"], "t", {}),
            ("Add", ["x", "t"], "a", {}),
            ("ReduceSum", ["a", "zero"], "y", {}),
        ],
        _ROWS,
        {"table": weights(16, 4), "zero": np.array([0])},
    ),
}


@pytest.mark.parametrize("case", REDUCED)
def test_operators_that_reduce_over_the_open_dimension(case):
    nodes, shape, constants = REDUCED[case]
    proto = model(nodes, shape, constants)
    check(proto, compiled(proto, "3..7"), (3, 4, 5, 7))


def _as_static(proto, found):
    """Each capacity has at most the kernels of a static compile; of one position the mask may save one."""
    for tile in found.open[0]["tiles"]:
        alone = graph_cost(smartmem_tvm.optimize(from_onnx(proto, dims(proto, tile["items"]))))
        cost = graph_cost(found.graph, tile["function"])
        assert cost.kernels <= alone.kernels, tile["items"]
        assert cost.layout_kernels == alone.layout_kernels == 0, tile["items"]


def test_queries_keys_and_values_of_one_product_have_no_mask_of_their_own():
    """The mask of the values goes before the product and its parts, into the kernel of the norm."""
    nodes = [
        ("LayerNormalization", ["x", "scale"], "l", {}),
        ("MatMul", ["l", "w"], "m", {}),
        ("Split", ["m"], "q", {"axis": 2, "num_outputs": 3}),
        ("Transpose", ["k"], "t", {"perm": [0, 2, 1]}),
        ("MatMul", ["q", "t"], "s", {}),
        ("Softmax", ["s"], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], "y", {}),
    ]
    proto = model(nodes, [1, N, 8], {"scale": weights(8), "w": weights(8, 24) / np.float32(4)})
    proto.opset_import[0].version = 18
    proto.graph.node[2].output.extend(["k", "v"])
    found = compiled(proto, "5..9")
    check(proto, found, (5, 6, 7, 8, 9))
    _as_static(proto, found)
    masked = {name for name in map(str, found.graph.get_global_vars()) if "mask_positions" in name}
    assert any("layer_norm" in name for name in masked)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_windows_over_vectors_of_words_gather_within_the_windows(seed):
    """The zeros behind the words' vectors are no kernel: each window reads the table, and zeros behind the length."""
    random = np.random.default_rng(seed)
    width, out, taps = (int(random.integers(low, 9)) for low in (2, 2, 3))
    dilation, count = int(random.integers(1, 3)), int(random.integers(1, 4))
    both = dilation * (taps - 1)
    before = int(random.integers(0, both + 1))
    pads = [before, both - before]
    nodes = [("Gather", ["table", "x"], "e", {}), ("Transpose", ["e"], "t", {"perm": [0, 2, 1]})]
    constants = {"table": weights(11, width)}
    for number in range(count):
        constants[f"k{number}"] = weights(out, width, taps, seed=number)
        nodes.append(("Conv", ["t", f"k{number}"], f"c{number}", {"pads": pads, "dilations": [dilation]}))
    nodes.append(("Sum", [f"c{number}" for number in range(count)], "s", {}))
    nodes.append(("ReduceMax", ["s"], "y", {"axes": [2]}) if random.random() < 0.5 else ("Relu", ["s"], "y", {}))
    proto = model(nodes, [1, N], constants, TensorProto.INT64)
    found = compiled(proto, "5..9")
    check(proto, found, (5, 6, 7, 8, 9))
    _as_static(proto, found)


def test_attention_with_a_mean():
    proto = sentence()
    found = compiled(proto, "1..13")
    assert [each["items"] for each in found.open[0]["tiles"]] == capacities(1, 13)
    check(proto, found, (1, 2, 3, 7, 8, 11, 13))
    _as_static(proto, found)


def test_kernels_that_nothing_reads_behind_the_length_are_shortened():
    found = [each for each in read_log(compiled(sentence(), "15..16").graph) if each["pass"] == "SkipPositions"]
    assert len(found) >= 2 and any("but as zeros" in each["reason"] for each in found)


def test_a_result_that_is_also_reduced():
    nodes = [("Tanh", ["x"], "t", {}), ("ReduceMean", ["t"], "y", {"axes": [0]})]
    proto = model(nodes, _ROWS)
    proto.graph.output.insert(0, onnx.helper.make_tensor_value_info("t", TensorProto.FLOAT, None))
    found = compiled(proto, "3..5")
    x = weights(4, 4)
    for got, wanted in zip(found.run(x), (np.tanh(x), np.tanh(x).mean(0, keepdims=True)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_weights_of_attention_in_another_shape_need_no_mask_of_their_own():
    nodes = [
        ("Transpose", ["x"], "t", {"perm": [0, 2, 1]}),
        ("MatMul", ["x", "t"], "s", {}),
        ("Softmax", ["s"], "p", {"axis": -1}),
        ("Unsqueeze", ["p", "one"], "u", {}),
        ("Unsqueeze", ["x", "one"], "v", {}),
        ("MatMul", ["u", "v"], "y", {}),
    ]
    module = from_onnx(model(nodes, [1, N, 4], {"one": np.array([1])}), {"x": (1, "7..8", 4)})
    assert str(module["main_0"]).count("mask_positions") == 2  # the scores, and the values


def test_an_open_batch_besides():
    proto = sentence()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    found = smartmem_tvm.compile(from_onnx(proto, {"x": ("1..4", "5..9")}))
    for batch, length in ((1, 5), (4, 9), (3, 7)):
        x = np.random.default_rng(batch).integers(0, 11, (batch, length))
        np.testing.assert_allclose(found.run(x)[0], expected(proto, x), rtol=1e-4, atol=1e-5)
    for shape, words in (((5, 7), "as many items"), ((2, 10), "as many positions"), ((2, 7, 1), r"\(1..4\)x\(5..9\)")):
        with pytest.raises(UserError, match=words):
            found.run(np.zeros(shape, "int64"))


@pytest.mark.parametrize("first", ("length", "batch"))
def test_an_open_batch_besides_windows_that_are_longer_than_one_position(first):
    """Either dimension is asked whether it has items, the length too, of which a window takes more than one."""
    turned = [1, 2, 0] if first == "length" else [0, 2, 1]
    nodes = [
        ("Transpose", ["x"], "t", {"perm": turned}),
        ("Conv", ["t", "w"], "c", {}),
        ("Transpose", ["c"], "u", {"perm": [0, 2, 1]}),
        ("Shape", ["u"], "s", {}),
        ("Expand", ["half", "s"], "e", {}),
        ("Add", ["u", "e"], "a", {}),
        ("ReduceMean", ["a"], "y", {"axes": [1], "keepdims": 0}),
    ]
    shape = ["n", "b", 4] if first == "length" else ["b", "n", 4]
    proto = model(nodes, shape, {"w": weights(6, 4, 5), "half": np.float32(0.5)})
    spans = {"n": "6..40", "b": "1..4"}
    found = smartmem_tvm.compile(from_onnx(proto, {"x": tuple(spans.get(dim, dim) for dim in shape)}))
    for length, batch in ((6, 1), (17, 3), (40, 4)):
        sizes = {"n": length, "b": batch}
        x = np.random.default_rng(length).standard_normal([sizes.get(dim, dim) for dim in shape]).astype("float32")
        np.testing.assert_allclose(found.run(x)[0], expected(proto, x), rtol=1e-4, atol=1e-5)


def test_what_refuses_an_open_batch_is_said_where_a_window_is_longer_than_one_position():
    nodes = [
        ("Conv", ["x", "w"], "c", {}),
        ("Transpose", ["c"], "t", {"perm": [2, 0, 1]}),
        ("LSTM", ["t", "i", "r"], "l", {"hidden_size": 8}),
        ("Relu", ["l"], "y", {}),
    ]
    constants = {"w": weights(4, 4, 5), "i": weights(1, 32, 4), "r": weights(1, 32, 8)}
    proto = model(nodes, ["b", 4, N], constants)
    with pytest.raises(UserError, match=r"given as 1\.\.4 stays open .* reads other items, or treats items"):
        from_onnx(proto, {"x": ("1..4", 4, "6..40")})


def test_places_that_are_counted_are_numbers_of_rows():
    """As of RoBERTa: what is an index is computed behind the length, too."""
    nodes = [
        ("Cast", ["x"], "i", {"to": 7}),
        ("Sub", ["i", "one"], "z", {}),
        ("Cast", ["z"], "b", {"to": 9}),
        ("Cast", ["b"], "c", {"to": 7}),
        ("CumSum", ["c", "axis"], "s", {}),
        ("Mul", ["s", "c"], "p", {}),
        ("Gather", ["table", "p"], "e", {}),
        ("MatMul", ["e", "w"], "m", {}),
        ("ReduceMean", ["m"], "y", {"axes": [1]}),
    ]
    constants = {"one": np.array(1), "axis": np.array(1), "table": weights(40, 6), "w": weights(6, 5)}
    proto = model(nodes, [1, N], constants, TensorProto.INT64)
    check(proto, compiled(proto, "5..9"), (5, 7, 8, 9))


@pytest.mark.parametrize("seed", range(6))
def test_drawn_chains_of_operators(seed):
    proto = drawn_chain(np.random.default_rng(seed))
    check(proto, compiled(proto, "3..7"), (3, 4, 5, 7))

# SPDX-License-Identifier: Apache-2.0
"""Rules of an open length, drawn at random over their attributes, beside ONNX Runtime at several lengths."""

import numpy as np
import pytest

from open_models import N, check, compiled, dims, model, weights
from smartmem_tvm import UserError
from smartmem_tvm.analysis.position_constants import counted_of
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.mask_positions import PLAIN, RECIPROCAL, RECIPROCAL_ROOT, ROOT, Counted, Extent

LENGTHS = (5, 6, 8, 9)


def right(nodes, constants, shape=(N, 4)):
    proto = model(nodes, list(shape), constants)
    check(proto, compiled(proto, "5..9"), LENGTHS)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_slices(seed):
    """The last ones, or all but some, along one or two axes, before and after a mean."""
    random = np.random.default_rng(seed)
    first, cut, last = (int(random.integers(low, 3)) for low in (0, 0, 1))
    begin, end = (first, -cut if cut else 1000) if seed % 2 else (-last, 1000)
    axes = [0, 1] if random.random() < 0.5 else [0]
    constants = {"b": [begin, int(random.integers(0, 3))][: len(axes)], "e": [end, 4][: len(axes)], "a": axes}
    nodes = [("Tanh", ["x"], "t", {}), ("Slice", ["t", "b", "e", "a"], "s", {})]
    nodes.append(("ReduceMean", ["s"], "y", {"axes": [int(random.integers(0, 2))]}))
    right(nodes, {name: np.array(each, "int64") for name, each in constants.items()})


@pytest.mark.parametrize("function", ["Identity", "Sqrt", "Reciprocal"])
@pytest.mark.parametrize("seed", range(2))
def test_drawn_numbers_of_positions(function, seed):
    """A scale that follows from the length, times a drawn factor, of all positions or of those behind a stride."""
    random = np.random.default_rng(seed)
    factor = np.float32(random.uniform(0.1, 3))
    nodes = [
        ("Conv", ["x", "k"], "c", {"pads": [1, 1], "strides": [int(random.integers(1, 3))]}),
        ("Shape", [("x", "c")[seed]], "s", {"start": 2, "end": 3}),
        ("Cast", ["s"], "f", {"to": 1}),
        (function, ["f"], "g", {}),
        ("Mul", ["g", "factor"], "h", {}),
        (str(random.choice(["Mul", "Div"])), ["c", "h"], "d", {}),
        ("Softmax", ["d"], "y", {"axis": 2}),
    ]
    right(nodes, {"k": weights(3, 3, 3), "factor": factor}, (1, 3, N))


@pytest.mark.parametrize("seed", range(6))
def test_drawn_recurrent_layers(seed):
    """Cells, directions, orders of axes, states, and the result of each step or the last states."""
    random = np.random.default_rng(seed)
    kind, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[seed % 3]
    direction = str(random.choice(["forward", "reverse", "bidirectional"]))
    both, hidden, layout = 1 + (direction == "bidirectional"), int(random.integers(3, 12)), 0
    attributes = {"hidden_size": hidden, "direction": direction, "layout": layout}
    constants = {
        "one": np.array([1]),
        "w": weights(both, gates * hidden, 4),
        "r": weights(both, gates * hidden, hidden),
    }
    inputs = ["u", "w", "r"]
    if random.random() < 0.5:
        constants |= {"b": weights(both, 2 * gates * hidden), "h": weights(both, 1, hidden)}
        inputs += ["b", "", "h"]
    every = random.random() < 0.5
    nodes = [("Unsqueeze", ["x", "one"], "u", {}), (kind, inputs, "steps", attributes)]
    proto = model([*nodes, ("Tanh", ["steps" if every else "state"], "y", {})], [N, 4], constants)
    if not every:
        proto.graph.node[1].output[0] = ""
        proto.graph.node[1].output.append("state")
    found = compiled(proto, "1..5")
    assert [each["items"] for each in found.open[0]["tiles"]] == [1, 2, 4, 5]
    check(proto, found, (1, 2, 3, 5))


def test_padding_that_keeps_the_size():
    nodes = [("Conv", ["x", "k"], "c", {"auto_pad": "SAME_UPPER"}), ("ReduceMax", ["c"], "y", {"axes": [2]})]
    right(nodes, {"k": weights(3, 3, 4)}, (1, 3, N))
    nodes = [("Pad", ["x", "p"], "q", {}), ("Conv", ["q", "k"], "y", {})]
    right(nodes, {"k": weights(3, 3, 4), "p": np.array([0, 0, 2, 0, 0, 1])}, (1, 3, N))


def test_a_norm_over_the_positions():
    nodes = [("InstanceNormalization", ["x", "a", "b"], "y", {})]
    right(nodes, {"a": weights(3), "b": weights(3, seed=1)}, (1, 3, N))


def test_parts_of_each_position():
    nodes = [
        ("Split", ["x", "s"], "a", {"axis": 1}),
        ("Softmax", ["a"], "b", {"axis": 0}),
        ("Mul", ["b", "c"], "y", {}),
    ]
    proto = model(nodes, [N, 4], {"s": np.array([2, 2])})
    proto.graph.node[0].output.append("c")
    check(proto, compiled(proto, "5..9"), LENGTHS)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_formulas_of_constants(seed):
    random = np.random.default_rng(seed)
    number = Extent(1, int(random.integers(0, 5)), int(random.integers(1, 4)))
    for function in (PLAIN, RECIPROCAL, ROOT, RECIPROCAL_ROOT):
        wanted = Counted(number, function, float(random.uniform(0.1, 9)))
        arrays = [np.full((2, 1), wanted.of(length), "float32") for length in (40, 77)]
        found = counted_of(*arrays, (40, 77), [Extent(), number])
        assert found.of(61) == pytest.approx(wanted.of(61), rel=1e-6)
    line = [np.array(3 * number.of(length) - 5) for length in (40, 77)]
    assert counted_of(*line, (40, 77), [number]).of(61) == 3 * number.of(61) - 5
    assert counted_of(np.array(1.5), np.array(7.1), (40, 77), [number]) is None
    assert counted_of(np.array([1, 2]), np.array([2, 1]), (40, 77), [number]) is None


def test_halves_of_the_positions_are_refused():
    nodes = [("Split", ["x"], "a", {"axis": 0}), ("Softmax", ["a"], "b", {"axis": 0}), ("Mul", ["b", "c"], "y", {})]
    proto = model(nodes, [N, 4])
    proto.graph.node[0].output.append("c")
    with pytest.raises(UserError, match=r"splits the positions|cannot be imported|has no halves"):
        from_onnx(proto, dims(proto, "4..8"))


def test_a_size_that_the_model_does_not_take_is_named():
    nodes = [
        ("MaxPool", ["x"], "p", {"kernel_shape": [2], "strides": [2]}),
        ("Resize", ["p", "", "two"], "r", {"mode": "nearest"}),
        ("Add", ["x", "r"], "y", {}),
    ]
    proto = model(nodes, [1, 3, N], {"two": np.array([1, 1, 2], "float32")})
    with pytest.raises(
        UserError,
        match=r"takes no size of 5 .* take multiples of a number only, which a step says, as in 320..640:32: give a",
    ):
        from_onnx(proto, dims(proto, "4..8"))

# SPDX-License-Identifier: Apache-2.0
"""Sizes by a step: networks that halve a picture and double it again, drawn over their attributes."""

from math import prod

import numpy as np
import pytest

from open_models import N, check, compiled, dims, model, weights
from smartmem_tvm import UserError
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.frontend.open_dimension import Range
from smartmem_tvm.frontend.open_length import capacities


def _integer(random, *bounds):
    return int(random.integers(*bounds))


def _drawn_until(random, draw, fits):
    return next(found for found in iter(lambda: draw(random), None) if fits(*found))


def _down(random, number, channels, last, stride):
    """A convolution or a pool with one result for each `stride` numbers."""
    kind = str(random.choice(["Conv", "MaxPool", "AveragePool"]))

    def draw(random):
        taps, dilation = _integer(random, 1, 6), 1 if kind == "AveragePool" else _integer(random, 1, 3)
        reach = dilation * (taps - 1)
        return taps, dilation, [_integer(random, 0, min(taps, reach + 1)) for _ in range(2)]

    taps, dilation, pads = _drawn_until(
        random, draw, lambda taps, dilation, pads: -stride < sum(pads) - dilation * (taps - 1) <= 0
    )
    attributes = {"pads": pads, "strides": [stride]}
    if kind == "Conv":
        held = {f"w{number}": weights(channels, channels, taps, seed=number) / np.float32(taps)}
        return [("Conv", [last, *held], f"t{number}", {**attributes, "dilations": [dilation]})], held
    attributes |= {"kernel_shape": [taps]} | ({"dilations": [dilation]} if kind == "MaxPool" else {})
    attributes |= {"count_include_pad": 1} if kind == "AveragePool" and pads[1] else {}
    return [(kind, [last], f"t{number}", attributes)], {}


def _up(random, number, channels, last, stride):
    """A picture repeated, or a transposed convolution, with `stride` results for each number."""
    name, held = f"t{number}", {}
    if random.random() < 0.4:
        held[f"s{number}"] = np.array([1, 1, stride], "float32")
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return [("Resize", [last, "", f"s{number}"], name, modes)], held

    def draw(random):
        taps, dilation, more = _integer(random, 1, 6), _integer(random, 1, 3), _integer(random, 0, stride)
        reach = dilation * (taps - 1)
        return taps, dilation, [_integer(random, 0, reach + 1) for _ in range(2)], more

    taps, dilation, pads, more = _drawn_until(
        random, draw, lambda taps, dilation, pads, more: dilation * (taps - 1) + 1 + more - sum(pads) == stride
    )
    held[f"w{number}"] = weights(channels, channels, taps, seed=number) / np.float32(taps)
    attributes = {"pads": pads, "strides": [stride], "dilations": [dilation], "output_padding": [more]}
    return [("ConvTranspose", [last, *held], name, attributes)], held


@pytest.mark.parametrize("seed", range(12))
def test_drawn_pictures_that_are_halved_and_doubled(seed):
    random = np.random.default_rng(seed)
    channels, strides = _integer(random, 1, 5), [_integer(random, 1, 4) for _ in range(_integer(random, 1, 4))]
    nodes, constants, kept, last = [], {}, [], "x"
    for number, stride in enumerate(strides):
        kept.append(last)
        more, held = _down(random, number, channels, last, stride)
        nodes, constants, last = [*nodes, *more], constants | held, f"t{number}"
    for number, (stride, before) in enumerate(zip(reversed(strides), reversed(kept)), len(strides)):
        if random.random() < 0.3:
            break
        more, held = _up(random, number, channels, last, stride)
        nodes, constants, last = (
            [*nodes, *more, ("Add", [f"t{number}", before], f"a{number}", {})],
            constants | held,
            f"a{number}",
        )
    ends = {"mean": ("ReduceMean", {"axes": [2]}), "maximum": ("ReduceMax", {"axes": [2]})}
    ends |= {"softmax": ("Softmax", {"axis": 2}), "each": ("Tanh", {})}
    kind, attributes = ends[str(random.choice(list(ends)))]
    proto = model([*nodes, (kind, [last], "y", attributes)], [1, channels, N], constants)
    step = prod(strides) * _integer(random, 1, 3)
    least = -(-6 // prod(strides))  # no window is longer than its operand
    most = least + _integer(random, 2, 5)
    check(proto, compiled(proto, f"{least * step}..{most * step}:{step}"), range(least, most + 1), step)


def _detector(channels=4):
    """A picture as PP-OCR's detector sees it: two strides, repeated and joined, a norm, and transposed convolutions."""
    resize = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    halves = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
    doubles = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        ("Conv", ["x", "a"], "b", halves),
        ("Conv", ["b", "c"], "d", halves),
        ("Resize", ["d", "", "two"], "e", resize),
        ("Concat", ["e", "b"], "f", {"axis": 1}),
        ("ConvTranspose", ["f", "g"], "h", doubles),
        ("BatchNormalization", ["h", "scale", "shift", "mean", "variance"], "i", {}),
        ("GlobalAveragePool", ["i"], "j", {}),
        ("Mul", ["i", "j"], "k", {}),
        ("Sigmoid", ["k"], "y", {}),
    ]
    constants = {"a": weights(channels, 3, 3, 3), "c": weights(channels, channels, 3, 3) / np.float32(6)}
    constants |= {"two": np.array([1, 1, 2, 2], "float32"), "g": weights(2 * channels, channels, 2, 2)}
    constants |= {
        name: abs(weights(channels, seed=at)) for at, name in enumerate(("scale", "shift", "mean", "variance"))
    }
    return model(nodes, [1, 3, 8, N], constants)


@pytest.mark.device
def test_a_detector_of_text():
    proto = _detector()
    found = compiled(proto, "8..24:4")
    assert found.open[0]["inputs"][0] == [{"axis": 3, "each": 4}]
    check(proto, found, range(2, 7), 4)
    with pytest.raises(UserError, match=r"has shape 1x3x8x10, and this model takes 'x' 1x3x8x\(2\.\.6\)\*4"):
        found.run(np.zeros((1, 3, 8, 10), "float32"))


def test_without_a_step_it_is_refused():
    with pytest.raises(UserError, match=r"takes no size of 17 .* multiples of a number only, which a step says"):
        from_onnx(_detector(), dims(_detector(), "8..32"))


@pytest.mark.parametrize(("text", "read"), [("8..24:4", Range(2, 6, 4)), (" 1..9 ", Range(1, 9)), ("8:4", None)])
def test_ranges_as_text(text, read):
    assert Range.read(text) == read
    assert read is None or str(read) == text.strip()


@pytest.mark.parametrize("text", ["8..26:4", "7..24:4", "8..24:0"])
def test_ends_are_multiples_of_the_step(text):
    with pytest.raises(UserError, match="give both ends as multiples of the step, at least 1"):
        Range.read(text)


def test_items_by_a_step():
    proto = model([("MatMul", ["x", "w"], "y", {})], [N, 4], {"w": weights(4, 6)})
    found = compiled(proto, "3..12:3")
    check(proto, found, range(1, 5), 3)
    with pytest.raises(UserError, match="has shape 4x4"):
        found.run(np.zeros((4, 4), "float32"))


def test_windows_have_more_capacities_from_positions_of_few_elements_on():
    assert capacities(10, 20, slides=True, step=32) == [10, 12, 14, 16, 20]
    assert capacities(10, 20, slides=True) == [16, 20] == capacities(10, 20, step=32)


REFUSED = {
    "a transposed window that overlaps": (
        [("ConvTranspose", ["x", "w"], "y", {"strides": [2]})],
        r"operator 'nn.conv1d_transpose' .* makes other than 2 results of each position",
    ),
    "a window that leaves some out": (
        [("Conv", ["x", "w"], "y", {"strides": [2]})],
        r"operator 'nn.conv1d' .* is a window over parts of positions, and its results are no whole parts of them",
    ),
    "a picture between whose numbers there are others": (
        [("Resize", ["x", "", "two"], "y", {"mode": "linear"})],
        r"operator 'resize1d' .* reads other positions than the one that it writes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_to_be_right_is_refused(case):
    nodes, reason = REFUSED[case]
    constants = {"w": weights(3, 3, 5), "two": np.array([1, 1, 2], "float32")}
    used = {each for _, inputs, *_ in nodes for each in inputs}
    proto = model(nodes, [1, 3, N], {name: value for name, value in constants.items() if name in used})
    with pytest.raises(UserError, match=reason):
        from_onnx(proto, dims(proto, "16..48:8"))


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_over_several_elements_of_a_step(kind, gates):
    """A position has 8 steps of the layer, or 4 behind a window that goes on by two."""
    nodes = [
        ("Conv", ["x", "k"], "c", {"pads": [1, 1], "strides": [2]}),
        ("Transpose", ["c"], "t", {"perm": [2, 0, 1]}),
        (kind, ["t", "w", "r"], "l", {"hidden_size": 5, "direction": "bidirectional"}),
        ("Tanh", ["l"], "y", {}),
    ]
    constants = {"k": weights(6, 3, 3), "w": weights(2, 5 * gates, 6), "r": weights(2, 5 * gates, 5)}
    proto = model(nodes, [1, 3, N], constants)
    check(proto, compiled(proto, "8..40:8"), (1, 2, 3, 5), step=8)

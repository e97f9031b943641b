# SPDX-License-Identifier: Apache-2.0
"""Windows that go on by several positions of an open length, drawn over their attributes, beside ONNX Runtime."""

import numpy as np
import pytest

from open_models import N, check, compiled, dims, model, weights
from smartmem_tvm import UserError, optimize
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.graph_report import graph_cost


def _integer(random, *bounds):
    return int(random.integers(*bounds))


def window(random, number, channels, last):
    """A convolution or a pool along the last axis: nodes, constants, channels, and its window in positions."""
    kind = str(random.choice(["Conv", "MaxPool", "AveragePool"]))
    taps, stride, dilation = _integer(random, 1, 5), _integer(random, 1, 4), _integer(random, 1, 3)
    dilation = 1 if kind == "AveragePool" else dilation
    reach = dilation * (taps - 1)
    pads = [_integer(random, 0, min(taps, reach + 1)) for _ in range(2)]
    attributes = {"pads": pads, "strides": [stride]}
    if kind == "Conv":
        wide = _integer(random, 1, 6)
        held = {f"w{number}": weights(wide, channels, taps, seed=number) / np.float32(taps)}
        attributes["dilations"] = [dilation]
        return [("Conv", [last, *held], f"t{number}", attributes)], held, wide, (reach, stride, pads)
    attributes["kernel_shape"] = [taps]
    if kind == "MaxPool":
        attributes["dilations"] = [dilation]
    elif pads[1]:
        attributes["count_include_pad"] = 1
    return [(kind, [last], f"t{number}", attributes)], {}, channels, (reach, stride, pads)


def results(length, windows):
    for reach, stride, pads in windows:
        length = (length + sum(pads) - reach - 1) // stride + 1
    return length


@pytest.mark.parametrize("seed", range(8))
def test_drawn_windows(seed):
    random = np.random.default_rng(seed)
    channels = first = _integer(random, 1, 5)
    nodes, constants, windows, last = [], {}, [], "x"
    for number in range(_integer(random, 1, 4)):
        more, held, channels, one = window(random, number, channels, last)
        nodes, constants, windows, last = [*nodes, *more], constants | held, [*windows, one], f"t{number}"
        if random.random() < 0.5:
            nodes, last = [*nodes, ("Relu", [last], f"r{number}", {})], f"r{number}"
    end = str(random.choice(["each", "mean", "maximum", "pairs", "softmax"]))
    if end == "mean":
        nodes.append(("ReduceMean", [last], "y", {"axes": [2]}))
    elif end == "maximum":
        nodes.append(("ReduceMax", [last], "y", {"axes": [2]}))
    elif end == "softmax":
        nodes.append(("Softmax", [last], "y", {"axis": 2}))
    elif end == "pairs":
        nodes += [("Transpose", [last], "a", {"perm": [0, 2, 1]}), ("MatMul", [last, "a"], "b", {})]
        nodes += [("Softmax", ["b"], "c", {"axis": -1}), ("MatMul", ["c", last], "y", {})]
    else:
        nodes.append(("Mul", [last, last], "y", {}))
    proto = model(nodes, [1, first, N], constants)
    least = next(n for n in range(1, 99) if all(results(n, windows[:k]) > 1 for k in range(1, len(windows) + 1)))
    least = max(least, 2 + max(reach for reach, *_ in windows))
    most = 2 * least + _integer(random, 1, 6)
    check(proto, compiled(proto, f"{least}..{most}"), sorted({least, least + 1, (least + most) // 2, most - 1, most}))


def recognizer(channels=6):
    """A line of text as PP-OCR reads it: strides along both sides, means over the picture, attention over the width."""
    nodes = [
        ("Conv", ["x", "a"], "c", {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("HardSwish", ["c"], "h", {}),
        ("Conv", ["h", "d"], "e", {"pads": [1, 1, 1, 1], "strides": [2, 1], "group": channels}),
        ("GlobalAveragePool", ["e"], "g", {}),
        ("Conv", ["g", "s"], "s0", {}),
        ("HardSigmoid", ["s0"], "s1", {}),
        ("Mul", ["e", "s1"], "m", {}),
        ("MaxPool", ["m"], "p", {"kernel_shape": [2, 2], "strides": [1, 2], "pads": [0, 0, 1, 1]}),
        ("AveragePool", ["p"], "q", {"kernel_shape": [3, 2], "strides": [3, 2]}),
        ("Squeeze", ["q", "two"], "r", {}),
        ("Transpose", ["r"], "t", {"perm": [0, 2, 1]}),
        ("MatMul", ["t", "r"], "u", {}),
        ("Softmax", ["u"], "v", {"axis": -1}),
        ("MatMul", ["v", "t"], "w", {}),
        ("Add", ["w", "t"], "y", {}),
    ]
    constants = {"a": weights(channels, 3, 3, 3), "d": weights(channels, 1, 3, 3), "two": np.array([2])}
    constants["s"] = weights(channels, channels, 1, 1) / np.float32(channels)
    return model(nodes, [1, 3, 16, N], constants)


@pytest.mark.device
def test_a_recognizer_of_text():
    proto = recognizer()
    found = compiled(proto, "17..34")
    (place,) = found.open[0]["outputs"][0]
    tiles = found.open[0]["tiles"]
    assert (place["more"], place["step"]) == (3, 8) and [each["items"] for each in tiles] == [32, 34]
    check(proto, found, (17, 19, 23, 24, 25, 31, 32, 33, 34))
    alone = graph_cost(optimize(from_onnx(proto, dims(proto, 34))))
    cost = graph_cost(found.graph, tiles[-1]["function"])
    assert cost.layout_kernels == 0 and cost.kernels == alone.kernels  # the first window has zeros behind the input


REFUSED = {
    "a mean of what is there": (
        [("AveragePool", ["x"], "y", {"kernel_shape": [3], "strides": [2], "pads": [1, 1]})],
        "operator 'nn.avg_pool1d' .* is a mean of those numbers of a window",
    ),
    "pads that follow from the size": (
        [("MaxPool", ["x"], "y", {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_UPPER"})],
        "operator 'nn.max_pool1d' .* differs with the size",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_to_be_right_is_refused(case):
    nodes, reason = REFUSED[case]
    proto = model(nodes, [1, 3, N])
    with pytest.raises(UserError, match=reason):
        from_onnx(proto, dims(proto, "4..12"))

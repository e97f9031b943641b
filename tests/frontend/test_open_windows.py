# SPDX-License-Identifier: Apache-2.0
"""Windows that go on by several positions of an open length, drawn over their attributes, beside ONNX Runtime."""

import numpy as np
import pytest

from open_models import N, check, compiled, model, weights


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


@pytest.mark.parametrize("seed", range(14))
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
    least = next(n for n in range(1, 99) if all(results(n, windows[:k]) > 0 for k in range(1, len(windows) + 1)))
    least = max(least, 2 + max(reach for reach, *_ in windows))
    most = 2 * least + _integer(random, 1, 6)
    check(proto, compiled(proto, f"{least}..{most}"), sorted({least, least + 1, (least + most) // 2, most - 1, most}))

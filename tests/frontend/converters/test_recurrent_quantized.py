# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check, integers, model_of, weights
from covering import seeds

# Sums of floats are in another order, so a hidden state may be rounded to another of its 256 levels. None of these are.
CLOSE = 3e-6


def _floats(random, *shape):
    return random.standard_normal(shape).astype("float32")


def _quantized(random, name, dtype, shape, each):
    """Weights, and their scales and zero points for all or for each gate of each unit."""
    ways, _, rows = shape
    kind = (ways, rows) if each else (ways,)
    zero = np.zeros(kind, dtype) if dtype == "int8" else np.full(kind, integers(random, dtype))
    drawn = weights(random, dtype, shape) if dtype == "int8" else integers(random, dtype, shape) // 2
    scale = (random.random(kind) * 0.02 + 0.002).astype("float32")
    return {name: drawn.astype(dtype)}, {f"{name}_scale": scale, f"{name}_zero": zero}


def _layer(random, steps=None, batch=None):
    """A node with any of its inputs and attributes, what is given to it, what it knows, and its results."""
    steps, batch = steps or int(random.integers(1, 7)), batch or int(random.integers(1, 5))
    width, hidden = int(random.integers(1, 8)), int(random.choice([1, 3, 8, 16, 17, 33]))
    direction = str(random.choice(["forward", "reverse", "bidirectional"]))
    ways = 2 if direction == "bidirectional" else 1
    dtype, each = str(random.choice(["int8", "uint8"])), random.random() < 0.5
    optional = {"b": _floats(random, ways, 8 * hidden), "lengths": random.integers(0, steps + 1, batch).astype("int32")}
    optional |= {name: _floats(random, ways, batch, hidden) for name in ("h", "c")}
    optional |= {"p": _floats(random, ways, 3 * hidden)}
    taken = {name: array for name, array in optional.items() if random.random() < 0.5}
    pairs = [
        _quantized(random, name, dtype, (ways, rows, 4 * hidden), each) for name, rows in (("w", width), ("r", hidden))
    ]
    names = ["x", "w", "r", *(name if name in taken else "" for name in optional), *pairs[0][1], *pairs[1][1]]
    given = {"x": _floats(random, steps, batch, width)}
    given |= {name: taken.pop(name) for name in ("lengths", "h", "c") if name in taken and random.random() < 0.5}
    attributes = {
        "clip": float(random.random() + 0.3),
        "input_forget": 1,
        "activations": ["HardSigmoid", "Tanh", "Softsign"] * ways,
    }
    attributes = {name: value for name, value in attributes.items() if random.random() < 0.3}
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        names,
        ["y", "h1", "c1"],
        domain=RUNTIME,
        hidden_size=hidden,
        direction=direction,
        **attributes,
    )
    known = {name: array for pair in pairs for part in pair for name, array in part.items()} | taken
    return node, given, known


@pytest.mark.parametrize("seed", seeds(3, 12, 30))
def test_all_inputs_and_attributes_drawn_at_random(seed):
    node, given, known = _layer(np.random.default_rng(seed))
    check([node], given, dict.fromkeys(("y", "h1", "c1"), "float32"), known, tolerance=CLOSE, threads=1, least=1)


def test_scales_of_another_shape_are_refused():
    node, given, known = _layer(np.random.default_rng(0))
    known["w_scale"] = np.ones((3, 5), "float32")
    model = model_of([node], given, dict.fromkeys(("y", "h1", "c1"), ("float32", (1,))), known)
    with pytest.raises(sm.UserError, match=r"DynamicQuantizeLSTM.*scales or zero points have shape \[3, 5\]"):
        sm.from_onnx(model)

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

RANDOM = np.random.default_rng(0)
DATA = RANDOM.uniform(-3, 3, (5, 4, 6)).astype("float32")


def _distinct(shape, axis):
    """Indices of which no two are the same along the axis; some count from the end."""
    rows = np.argsort(RANDOM.uniform(size=DATA.shape), axis)
    rows = np.where(rows % 2, rows, rows - DATA.shape[axis])
    return rows[tuple(map(slice, shape))]


@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 4, 6), 0), ((1, 3, 2), 0), ((1, 3, 2), -1), ((2, 4, 6), 0), ((2, 4, 6), 1), ((5, 4, 1), 1)]
)
def test_indices_may_be_smaller_than_the_data(agree, shape, axis):
    indices, updates = _distinct(shape, axis), RANDOM.uniform(size=shape).astype("float32")
    node = helper.make_node("ScatterElements", ["d", "i", "u"], ["y"], axis=axis)
    agree(node, {"d": DATA, "u": updates}, {"i": indices}, tolerance=0)


@pytest.mark.parametrize(
    ("reduction", "shape"), [("add", (5, 4, 6)), ("mul", (2, 3, 3)), ("min", (2, 3, 3)), ("max", (2, 3, 3))]
)
def test_reductions_at_places_that_come_again(agree, reduction, shape):
    indices, updates = RANDOM.integers(-5, 5, shape), RANDOM.uniform(size=shape).astype("float32")
    node = helper.make_node("ScatterElements", ["d", "i", "u"], ["y"], axis=0, reduction=reduction)
    agree(node, {"d": DATA, "i": indices, "u": updates})


@pytest.mark.parametrize(("mode", "axis"), [("linear", -2), ("circular", 1)])
def test_an_update_of_a_cache(agree, mode, axis):
    cache, update = RANDOM.uniform(size=(2, 3, 6, 4)), RANDOM.uniform(size=(2, 3, 2, 4))
    start = np.array([1, 5 if mode == "circular" else 4])
    if axis == 1:
        cache, update = cache.transpose(0, 2, 1, 3), update.transpose(0, 2, 1, 3)
    node = helper.make_node("TensorScatter", ["c", "u", "s"], ["y"], mode=mode, axis=axis)
    inputs = {"c": np.ascontiguousarray(cache), "u": np.ascontiguousarray(update), "s": start}
    agree(node, inputs, opset=24, tolerance=0, by_reference=True)

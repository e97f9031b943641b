# SPDX-License-Identifier: Apache-2.0
"""Where the items of a tensor lie, and whether operators and constants are the same for any number of them."""

import numpy as np
import pytest

from open_models import N, dims, encoder, layers, model, weights
from smartmem_tvm.analysis.items import LOOPS, Mixed, Share, item_work, require_same_graph, share_of
from smartmem_tvm.frontend import from_onnx


@pytest.mark.parametrize("seed", range(20))
def test_items_lie_along_the_axis_that_grows(seed):
    random = np.random.default_rng(seed)
    shape = list(map(int, random.integers(1, 8, random.integers(1, 5))))
    axis, each, counts = int(random.integers(len(shape))), int(random.integers(1, 6)), (2, int(random.choice([3, 5])))
    small, large = (shape[:axis] + [each * count] + shape[axis + 1 :] for count in counts)
    assert share_of(small, large, counts, "x") == Share(axis, each)
    assert share_of(small, small, counts, "x") is None
    with pytest.raises(Mixed, match="several dimensions"):
        share_of([*small, 2], [*large, 3], counts, "x")
    with pytest.raises(Mixed, match="no multiple"):
        share_of([*shape, 4], [*shape, 5], counts, "x")


def modules(proto):
    return [from_onnx(proto, dims(proto, items)) for items in (2, 3)]


def test_the_work_of_an_item():
    found = item_work(*map(LOOPS, modules(layers(16, 2))), (2, 3))
    assert (found.inputs, found.outputs) == ([Share(0, 1)], [Share(0, 1)])
    assert found.sums == [(16 * 16, 16 * 16)] * 2
    length, width = 5, 8
    found = item_work(*map(LOOPS, modules(encoder(length, width))), (2, 3))
    sums = 3 * length * width * width + 2 * length * length * width
    assert sum(read for _, read in found.sums) == 3 * width * width
    assert sums <= sum(steps for steps, _ in found.sums) <= sums + 100  # softmax reduces as well


def test_other_weights_are_another_graph():
    one, other = (model([("MatMul", ["x", "w"], "y", {})], [N, 4], {"w": weights(4, 3, seed=seed)}) for seed in (0, 1))
    same, first = modules(one), modules(other)[1]
    require_same_graph(*same, (2, 3))
    with pytest.raises(Mixed, match=r"'matmul' .* differs with the size of the open dimension"):
        require_same_graph(same[0], first, (2, 3))

# SPDX-License-Identifier: Apache-2.0
"""Which lengths of a list run at the capacity of a larger one, by the model of time."""

from dataclasses import replace

import numpy as np
import pytest

from open_models import N, dims, model, weights
from smartmem_tvm.analysis import length_cost
from smartmem_tvm.analysis.length_cost import LengthCost, LengthSum, Sized, length_sums
from smartmem_tvm.analysis.positions import length_work
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.mask_positions import Extent

POSITIONS = (Extent(),)
LINEAR = LengthSum(Sized(768, POSITIONS), Sized(768), 768 * 768)


def sums(nodes, shape, constants):
    mods = [from_onnx(model(nodes, shape, constants), dims(model(nodes, shape, constants), n)) for n in (5, 9)]
    return length_sums(length_work(*mods, (5, 9), 5), (5, 9))


def test_sums_of_products_softmax_and_convolutions():
    nodes = [
        ("MatMul", ["x", "w"], "m", {}),
        ("Transpose", ["m"], "t", {"perm": [0, 2, 1]}),
        ("MatMul", ["m", "t"], "s", {}),
        ("Relu", ["s"], "y", {}),
    ]
    product, scores = sums(nodes, [1, N, 6], {"w": weights(6, 4)})
    assert product == LengthSum(Sized(4, POSITIONS), Sized(6), 24)
    assert (scores.written, scores.added) == (Sized(1, POSITIONS * 2), Sized(4))
    nodes = [("Conv", ["x", "k"], "y", {"pads": [1] * 4, "strides": [1, 2]})]
    (window,) = sums(nodes, [1, 3, 8, N], {"k": weights(4, 3, 3, 3)})
    assert window == LengthSum(Sized(32, (Extent(1, 1, 2),)), Sized(27), 108)


def test_products_are_shared():
    assert LengthCost([LINEAR]).served([64, 100, 128]) == {64: 128, 100: 128}
    assert LengthCost([LINEAR]).served([7, 8, 128]) == {7: 128, 8: 128}  # few rows wait for weights in any case
    assert LengthCost([LINEAR]).served([21, 22]) == {}  # a row of 22 is for nothing: 1.03x of both together
    assert LengthCost([LINEAR]).served([31, 32]) == {31: 32}  # 1.03x of one, and 1.02x of both


def test_keys_of_the_capacity_are_read():
    scores = LengthSum(Sized(12, POSITIONS * 2), Sized(64))
    assert LengthCost([scores]).served([128, 256]) == {128: 256}
    attention = LengthSum(Sized(768, POSITIONS), Sized(1, POSITIONS))
    assert LengthCost([attention]).served([128, 256]) == {}


def test_copies_take_time():
    assert LengthCost([LINEAR], outputs=20_000).served([64, 128]) == {}
    assert LengthCost([LINEAR], outputs=20).served([64, 128]) == {64: 128}


def test_one_length_pays_little_for_the_others():
    short = LengthSum(Sized(1), Sized(1, POSITIONS))  # takes what the capacity takes
    cost = LengthCost([LINEAR, replace(short, written=Sized(10_000))])
    assert cost.at(16, 512) > length_cost._MOST * cost.alone(16)
    assert cost.served([16, 384, 448, 512]) == {384: 512, 448: 512}


@pytest.mark.parametrize("seed", range(5))
def test_drawn_lists(seed):
    """Lengths run at larger ones with a function, and take at most 1.02 as long together; the longest has its own."""
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(4):
        steps = 10 ** random.uniform(1, 5, 2)
        drawn.append(LengthSum(Sized(int(steps[0]), POSITIONS), Sized(int(steps[1])), int(10 ** random.uniform(0, 7))))
    cost = LengthCost(drawn, inputs=int(random.integers(0, 100)))
    lengths = sorted(set(map(int, random.integers(1, 300, 10))))
    found = cost.served(lengths)
    for length, capacity in found.items():
        assert length < capacity and capacity in set(lengths) - found.keys()
        assert cost.at(length, capacity) <= length_cost._MOST * cost.alone(length)
    together = sum(cost.at(each, found[each]) if each in found else cost.alone(each) for each in lengths)
    assert together <= length_cost.MORE * sum(map(cost.alone, lengths))
    assert max(lengths) not in found

# SPDX-License-Identifier: Apache-2.0
"""Where positions lie, what operators need behind the length, and what they do with positions that is refused."""

import numpy as np
import pytest

from open_models import N, dims, model, sentence, weights
from smartmem_tvm.analysis import positions
from smartmem_tvm.analysis.items import Mixed, Share
from smartmem_tvm.analysis.position_work import Need, same_prefix, shares_of
from smartmem_tvm.analysis.positions import length_work
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.mask_positions import LOWEST, ZERO

_LENGTHS = (5, 7)


def work(proto, lengths=_LENGTHS, least=1):
    return length_work(*(from_onnx(proto, dims(proto, length)) for length in lengths), lengths, least)


@pytest.mark.parametrize("seed", range(20))
def test_positions_lie_along_the_axes_that_grow(seed):
    random = np.random.default_rng(seed)
    rank = int(random.integers(1, 5))
    shape, along = random.integers(1, 6, rank), random.integers(0, 2, rank)
    lengths = int(random.integers(1, 6)), int(random.integers(6, 9))
    small, large = (tuple(int(n) * (length if a else 1) for n, a in zip(shape, along)) for length in lengths)
    wanted = tuple(Share(axis, int(n)) for axis, (n, a) in enumerate(zip(shape, along)) if a)
    assert shares_of(small, large, lengths, "x") == wanted
    with pytest.raises(Mixed, match="no multiple of the length"):
        shares_of((*small, 4), (*large, 5), (5, 7), "x")


def test_the_needs_of_attention_and_of_a_mean():
    found = work(sentence())
    assert found.inputs == [(Share(1, 1),)] and found.outputs == [()]
    by_name = {each.name: each for each in found.operators if each.needs}
    assert by_name["nn.softmax"].needs == [Need(0, 3, LOWEST)] and by_name["nn.softmax"].zero == {3}
    assert by_name["matmul"].needs == [Need(0, 3, ZERO, True), Need(1, 2, ZERO, True)]
    assert by_name["mean"].needs == [Need(0, 1, ZERO)] and by_name["mean"].scaled == [Share(1, 1)]


def test_operators_that_work_position_by_position_need_nothing():
    nodes = [("MatMul", ["x", "w"], "m", {}), ("Relu", ["m"], "r", {}), ("Softmax", ["r"], "y", {"axis": 2})]
    found = work(model(nodes, [1, N, 4], {"w": weights(4, 4)}))
    assert not any(each.needs for each in found.operators) and found.outputs == [(Share(1, 1),)]


def test_a_product_with_itself_needs_zeros():
    found = work(model([("Transpose", ["x"], "t", {}), ("MatMul", ["t", "x"], "y", {})], [N, 4]))
    (product,) = [each for each in found.operators if each.name == "matmul"]
    assert [need.axis for need in product.needs] == [1, 0] and found.outputs == [()]


REFUSED = {
    "places that the end hides from a mean": (
        [("AveragePool", ["x"], "y", {"kernel_shape": [3], "strides": [2], "pads": [1, 1]})],
        [1, 4, N],
        {},
    ),
    "a last window that may be in the padding": (
        [("MaxPool", ["x"], "y", {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1})],
        [1, 4, N],
        {},
    ),
    "windows that are longer than the least length": (
        [("Conv", ["x", "k"], "y", {})],
        [1, 4, N],
        {"k": weights(4, 4, 3)},
    ),
    "numbers of positions that differ": (
        [
            ("MaxPool", ["x"], "a", {"kernel_shape": [1], "strides": [2]}),
            ("MaxPool", ["x"], "b", {"kernel_shape": [2], "strides": [2]}),
            ("Add", ["a", "b"], "y", {}),
        ],
        [1, 4, N],
        {},
    ),
    "heads before the length": (
        [("Transpose", ["x"], "t", {"perm": [1, 0, 2]}), ("Reshape", ["t", "s"], "y", {})],
        [N, 2, 4],
        {"s": np.array([-1, 4])},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_operator(case):
    nodes, shape, constants = REFUSED[case]
    with pytest.raises(Mixed, match=r"operator '|multiple"):
        work(model(nodes, shape, constants), (4, 6))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_constants_are_the_beginning_of_longer_ones(dtype):
    long = np.arange(42).reshape(7, 6).astype(dtype)
    assert same_prefix(long[:4, :4], long) and same_prefix(long, long[:4])
    assert not same_prefix(long[1:5, :4], long) and not same_prefix(long, long + 1) and not same_prefix(long[0], long)


@pytest.mark.parametrize("seed", range(8))
def test_element_wise_operators_known_by_name_are_what_their_loops_say(seed, monkeypatch):
    """Drawn operands that broadcast: with positions along other axes, or none, with dimensions of one."""
    random = np.random.default_rng(seed)
    rank = int(random.integers(1, 4))
    shape = [N if along else int(size) for along, size in zip(random.integers(0, 2, rank), random.integers(1, 4, rank))]
    shape[int(random.integers(0, rank))] = N
    constant = [1 if size == N or random.integers(0, 2) else size for size in shape[int(random.integers(0, rank)) :]]
    summed = int(random.integers(0, rank))
    nodes = [
        ("Add", ["x", "c"], "a", {}),
        ("Sigmoid", ["a"], "b", {}),
        ("ReduceSum", ["b", "axes"], "r", {}),
        ("Mul" if random.integers(0, 2) else "Max", ["b", "r"], "y", {}),
    ]
    proto = model(nodes, shape, {"c": weights(*constant), "axes": np.array([summed])})

    def found():
        try:
            return [(each.shares, each.needs, each.kept) for each in work(proto).operators]
        except Mixed as reason:
            return str(reason)

    by_name = found()
    monkeypatch.setattr(positions, "_BY_NAME", {})
    assert by_name == found()

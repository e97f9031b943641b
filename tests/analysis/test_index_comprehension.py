# SPDX-License-Identifier: Apache-2.0
"""Index comprehension (SmartMem 3.2.1): random chains of layout operators end as one map, right and minimal."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import count_up, legal, move, nodes, op
from smartmem_tvm.analysis.classify import quadrant
from smartmem_tvm.ir.index_map import division_count
from smartmem_tvm.ir.movement import movement
from smartmem_tvm.tables.fusion_policy import MOST_DIVISIONS
from smartmem_tvm.tables.quadrant import Quadrant
from smartmem_tvm.transform import EliminateLayout

EXTENT = st.sampled_from([1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 11])
CHAINS = settings(max_examples=80)


def left_over(steps, shape) -> list:
    """The nodes that are left of a chain of steps on a tensor of `shape`."""

    def build(x):
        for step in steps:
            x = step(x)
        return x

    return nodes(EliminateLayout()(legal(build, shape)))


def composed(steps, shape):
    """The one node that is left of a chain."""
    (node,) = left_over(steps, shape)
    return node


def carry_out(found, array) -> np.ndarray:
    """Run what is left of a chain with numpy."""
    arrays = {"x0": array}
    for node in found:
        arrays[node.var.name] = arrays[node.value.name] if node.kernel is None else move(node, **arrays)
    return arrays[found[-1].var.name]


def apply(steps, array):
    for step in steps:
        array = step.on_array(array)
    return array


class Step:
    """A layout operator: called on a Relax expression, `on_array` on a numpy array, `inverse` where there is one."""

    def __init__(self, text, on_relax, on_array, inverse=None):
        self.text, self.on_relax, self.on_array, self.inverse = text, on_relax, on_array, inverse

    def __call__(self, x):
        return self.on_relax(x)

    def __repr__(self):
        return self.text


def reshape(shape, old) -> Step:
    def step(new):
        return Step(f"reshape{new}", lambda x: op.reshape(x, new), lambda a: a.reshape(new))

    there, back = step(tuple(shape)), step(tuple(old))
    there.inverse, back.inverse = back, there
    return there


def transpose(axes) -> Step:
    def step(p):
        return Step(f"transpose{p}", lambda x: op.permute_dims(x, p), lambda a: a.transpose(p))

    there, back = step(tuple(axes)), step(tuple(int(i) for i in np.argsort(axes)))
    there.inverse, back.inverse = back, there
    return there


def flip(axis) -> Step:
    step = Step(f"flip({axis})", lambda x: op.flip(x, axis), lambda a: np.flip(a, axis))
    step.inverse = step
    return step


def roll(cut, axis, size) -> Step:
    """Slice + slice + concat, as ONNX exporters write it."""

    def step(c):
        def on_relax(x):
            tail, head = op.strided_slice(x, [axis], [c], [size]), op.strided_slice(x, [axis], [0], [c])
            return op.concat([tail, head], axis)

        return Step(f"roll({c}, {axis})", on_relax, lambda a: np.roll(a, -c, axis))

    there, back = step(cut), step(size - cut)
    there.inverse, back.inverse = back, there
    return there


def strided(start, stop, stride, axis) -> Step:
    return Step(
        f"slice({start}:{stop}:{stride}, {axis})",
        lambda x: op.strided_slice(x, [axis], [start], [stop], [stride]),
        lambda a: np.take(a, range(start, stop, stride), axis),
    )


@st.composite
def factors(draw, total: int) -> tuple:
    """An ordered factorisation, unit factors included."""
    shape = []
    while total > 1 and len(shape) < 3:
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        shape.append(draw(st.sampled_from(divisors)))
        total //= shape[-1]
    return (*shape, total)


@st.composite
def steps(draw, shape, slices: bool, rolls: bool):
    """One random layout operator for a tensor of `shape`."""
    kinds = ["reshape", "transpose", "flip"]
    wide = [axis for axis, size in enumerate(shape) if size > 1]
    kinds += ["roll"] if wide and rolls else []
    kinds += ["slice"] if wide and slices else []
    kind = draw(st.sampled_from(kinds))
    if kind == "reshape":
        return reshape(draw(factors(math.prod(shape))), shape)
    if kind == "transpose":
        return transpose(draw(st.permutations(range(len(shape)))))
    if kind == "flip":
        return flip(draw(st.integers(0, len(shape) - 1)))
    axis = draw(st.sampled_from(wide))
    if kind == "roll":
        return roll(draw(st.integers(1, shape[axis] - 1)), axis, shape[axis])
    start = draw(st.integers(0, shape[axis] - 2))
    return strided(start, draw(st.integers(start + 1, shape[axis])), draw(st.integers(1, 3)), axis)


@st.composite
def chains(draw, slices: bool = True, rolls: bool = True, longest: int = 6):
    """A shape and a chain of layout operators on it; squares, primes and unit axes are frequent."""
    shape = draw(st.lists(EXTENT, min_size=1, max_size=4).map(tuple))
    if draw(st.booleans()):
        shape = (shape[0],) * 2 + shape[2:]
    array, chain = np.zeros(shape), []
    for _ in range(draw(st.integers(1, longest))):
        step = draw(steps(array.shape, slices, rolls))
        chain.append(step)
        array = step.on_array(array)
    return shape, chain


@CHAINS
@given(chains())
def test_random_chains_against_numpy(shape_and_chain):
    shape, chain = shape_and_chain
    found, array = left_over(chain, shape), count_up(*shape)
    np.testing.assert_array_equal(carry_out(found, array), apply(chain, array))
    # More than one movement is left only where a map has become too long to read through.
    assert all(division_count(node.kernel.last.body) > MOST_DIVISIONS for node in found[:-1])


@CHAINS
@given(chains(slices=False, rolls=False, longest=3))
def test_a_chain_and_its_inverse_are_the_identity(shape_and_chain):
    """No kernel, no ``//``, no ``%``: the function returns its input, unless a map on the way was too long."""
    shape, chain = shape_and_chain
    found = left_over([*chain, *(step.inverse for step in reversed(chain))], shape)
    assert found[-1].kernel is None or len(found) > 1
    assert all(division_count(node.kernel.last.body) > MOST_DIVISIONS for node in found[:-1])


@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((6, 2), (1, 2, 2, 3)),
        ((4, 4), (2, 2, 4)),
        ((4, 4), (16,)),
        ((6, 4), (4, 6)),
        ((5, 7), (7, 5)),
        ((3, 1, 4), (2, 6)),
        ((2, 3, 5), (5, 3, 2)),
        ((8, 9), (6, 12)),
        ((49, 4, 8), (7, 7, 32)),
    ],
)
def test_a_reshape_and_its_inverse_are_the_identity(shape, other):
    """Also where the axes do not line up, and between equal extents."""
    node = composed([reshape(other, shape), reshape(shape, other)], shape)
    assert node.kernel is None


@CHAINS
@given(chains(slices=False, rolls=False, longest=5))
def test_whole_tensor_chains_are_bijections(shape_and_chain):
    shape, chain = shape_and_chain
    node = composed(chain, shape)
    assert node.kernel is None or quadrant(node.kernel) is Quadrant.ILD_FIXED


@pytest.mark.parametrize(
    ("shape", "chain"),
    [
        (
            (11, 11, 2, 2),
            [strided(0, 1, 1, 3), reshape((1, 2, 1, 121), (11, 11, 2, 1)), roll(1, 3, 121), roll(1, 1, 2)],
        ),
        (
            (2, 2, 4, 11),
            [transpose((3, 1, 2, 0)), reshape((1, 2, 8, 11), (11, 2, 4, 2)), roll(1, 1, 2), transpose((2, 0, 1, 3))],
        ),
    ],
)
def test_chains_that_made_tvm_divide_by_zero(shape, chain):
    """Found by chance: an error inside iter_map_simplify ended the process."""
    array = count_up(*shape)
    np.testing.assert_array_equal(carry_out(left_over(chain, shape), array), apply(chain, array))


# --- minimality ---------------------------------------------------------------------------------------------------


def direct_count(source: list[list[int]], target: list[list[int]]) -> int:
    """Divisions of the direct digit form of a map between two groupings of the same mixed-radix digits.

    An axis of the source is a sum of digits times strides. Digits that stay neighbours move as one run; taking a run
    out of an axis of the target costs ``//`` unless the run ends the axis, and ``%`` unless it begins it.
    """
    place = {digit: (g, p) for g, group in enumerate(target) for p, digit in enumerate(group)}
    count = 0
    for group in source:
        for position, digit in enumerate(group):
            g, p = place[digit]
            continues = position > 0 and place[group[position - 1]] == (g, p - 1)
            continued = position + 1 < len(group) and place[group[position + 1]] == (g, p + 1)
            count += 0 if continues or p == 0 else 1  # %
            count += 0 if continued or p == len(target[g]) - 1 else 1  # //
    return count


@st.composite
def digit_chains(draw):
    """Digits, and a chain that splits a tensor into digits, permutes them, merges some, several times over."""
    radix = draw(st.lists(st.sampled_from([2, 2, 3, 4, 5, 7]), min_size=1, max_size=5))
    order = list(range(len(radix)))

    def grouping():
        groups = [[order[0]]]
        for digit in order[1:]:
            if draw(st.booleans()):
                groups.append([])
            groups[-1].append(digit)
        return groups

    def sizes(groups):
        return tuple(math.prod(radix[d] for d in group) for group in groups)

    source = target = grouping()
    chain = []
    for _ in range(draw(st.integers(1, 3))):
        split = [[digit] for digit in order]
        axes = draw(st.permutations(range(len(order))))
        chain += [reshape(sizes(split), sizes(target)), transpose(axes)]
        order = [order[axis] for axis in axes]
        target = grouping()
        chain.append(reshape(sizes(target), sizes([[digit] for digit in order])))
    return sizes(source), chain, direct_count(source, target)


@CHAINS
@given(digit_chains())
def test_composed_maps_carry_no_redundant_division(case):
    shape, chain, least = case
    node = composed(chain, shape)
    if node.kernel is None:
        assert least == 0
        return
    array = count_up(*shape)
    np.testing.assert_array_equal(move(node, x0=array), apply(chain, array))
    (piece,) = movement(node.kernel).pieces
    assert sum(division_count(index) for index in piece.indices) <= least


def indices_of(node) -> str:
    return str(movement(node.kernel)).split(" -> ")[1]


def test_direct_count_of_known_maps():
    """The measure itself: a merge costs nothing to read whole, a digit inside of an axis costs two."""
    assert direct_count([[0], [1]], [[0], [1]]) == 0
    assert direct_count([[0, 1]], [[0], [1]]) == 0
    assert direct_count([[0], [1]], [[0, 1]]) == 2
    assert direct_count([[0], [1], [2]], [[0, 1, 2]]) == 4
    assert direct_count([[0], [1, 2]], [[0, 1, 2]]) == 2
    assert direct_count([[0, 1]], [[1, 0]]) == 2


# --- chains of real networks --------------------------------------------------------------------------------------


def test_the_papers_example():
    """SmartMem Figure 3: (2, 256, 4) -> reshape (16, 8, 4, 4) -> transpose: identity, split and merge together."""
    node = composed([reshape((16, 8, 4, 4), (2, 256, 4)), transpose((0, 2, 1, 3))], (2, 256, 4))
    array = count_up(2, 256, 4)
    np.testing.assert_array_equal(move(node, x0=array), array.reshape(16, 8, 4, 4).transpose(0, 2, 1, 3))
    identity, merged, split = movement(node.kernel).pieces[0].indices[::-1]
    assert identity.same_as(node.kernel.last.spatial[3])
    assert (division_count(split), division_count(merged)) == (1, 1)


def test_window_partition_of_a_rolled_image():
    """Swin: tokens -> image, roll both axes, windows, tokens; one load, no branch."""
    chain = [
        reshape((1, 8, 8, 3), (1, 64, 3)),
        roll(2, 1, 8),
        roll(2, 2, 8),
        reshape((1, 2, 4, 2, 4, 3), (1, 8, 8, 3)),
        transpose((0, 1, 3, 2, 4, 5)),
        reshape((4, 16, 3), (1, 2, 2, 4, 4, 3)),
    ]
    node = composed(chain, (1, 64, 3))
    array = count_up(1, 64, 3)
    np.testing.assert_array_equal(move(node, x0=array), apply(chain, array))
    assert quadrant(node.kernel) is Quadrant.ILD_FIXED
    assert len(movement(node.kernel).pieces) == 1


def test_window_reverse_undoes_window_partition():
    partition = [
        reshape((1, 2, 4, 2, 4, 3), (1, 8, 8, 3)),
        transpose((0, 1, 3, 2, 4, 5)),
        reshape((4, 16, 3), (1, 2, 2, 4, 4, 3)),
    ]
    node = composed([*partition, *(step.inverse for step in reversed(partition))], (1, 8, 8, 3))
    assert node.kernel is None


@pytest.mark.parametrize(("first", "second"), [(3, 5), (1, 1), (4, 4), (7, 1)])
def test_rolls_add_up(first, second):
    node = composed([roll(first, 0, 8), roll(second, 0, 8)], (8, 3))
    if (first + second) % 8 == 0:
        assert node.kernel is None
    else:
        assert indices_of(node) == f"x0[(ax0 + {(first + second) % 8}) % 8, ax1]"


def test_pixel_shuffle_and_back():
    there = [reshape((1, 3, 2, 2, 4, 4), (1, 12, 4, 4)), transpose((0, 1, 4, 2, 5, 3))]
    there += [reshape((1, 3, 8, 8), (1, 3, 4, 2, 4, 2))]
    assert composed([*there, *(step.inverse for step in reversed(there))], (1, 12, 4, 4)).kernel is None


def test_attention_heads():
    """Split of q, k, v with heads: no division at all."""
    node = composed([reshape((5, 3, 2, 4), (5, 24)), transpose((1, 2, 0, 3)), strided(1, 2, 1, 0)], (5, 24))
    assert division_count(node.kernel.last.body) == 0
    assert indices_of(node) == "x0[ax2, ax1 * 4 + ax3 + 8]"

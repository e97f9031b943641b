# SPDX-License-Identifier: Apache-2.0
"""MergeBranches: the same results with one convolution in place of several."""

from itertools import count

import pytest

from helpers import assert_same_results, constant, module, op, operators, random
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import MergeBranches

SHAPE = (2, 6, 9, 7)


def names(mod) -> list[str]:
    return [name.removeprefix("nn.") for name in operators(mod)]


def merged(build, *shapes) -> list[str]:
    """Run the pass, compare results; returns the names of the operators, in order."""
    shapes = shapes or (SHAPE,)
    before = module(build, *shapes)
    after = MergeBranches()(before)
    assert_same_results(before, after, *random(*shapes), tolerance=1e-4)
    done = [entry for entry in read_log(after) if entry["pass"] == "MergeBranches"]
    assert bool(done) == (names(before) != names(after))
    assert all(entry["flops_saved"] > 0 for entry in done)
    return names(after)


seeds = count()  # equal operators would be one


def conv(x, *window, channels=6, **attrs):
    groups = attrs.get("groups", 1)
    return op.nn.conv2d(x, constant(channels, 6 // groups, *(window or (3, 3)), seed=next(seeds)), **attrs)


def bias(channels=6):
    return constant(1, channels, 1, 1, seed=next(seeds))


MERGED = {
    "a window of one in one of nine": lambda x: op.add(conv(x, padding=1), conv(x, 1, 1)),
    "four of nine": lambda x: op.add(
        op.add(conv(x, padding=1), conv(x, padding=1)), op.add(conv(x, padding=1), conv(x, padding=1))
    ),
    "crosses in a square": lambda x: op.add(
        op.add(conv(x, 1, 3, padding=(0, 1, 0, 1)), conv(x, padding=1)), conv(x, 3, 1, padding=(1, 0, 1, 0))
    ),
    "strides": lambda x: op.add(conv(x, padding=1, strides=2), conv(x, 1, 1, strides=2)),
    "strides of two kinds": lambda x: op.add(
        conv(x, 5, 3, padding=(2, 1), strides=(3, 2)), conv(x, 1, 1, strides=(3, 2))
    ),
    "dilated": lambda x: op.add(conv(x, padding=2, dilation=2), conv(x, 1, 1, dilation=2)),
    "groups": lambda x: op.add(conv(x, padding=1, groups=3), conv(x, 1, 1, groups=3)),
    "each channel by itself": lambda x: op.add(conv(x, padding=1, groups=6), conv(x, 1, 1, groups=6)),
    "other channels": lambda x: op.add(conv(x, channels=11, padding=1), conv(x, 1, 1, channels=11)),
    "without padding": lambda x: op.add(conv(x), conv(x)),
    "uneven padding": lambda x: op.add(conv(x, 2, 2, padding=(1, 1, 0, 0)), conv(x, 1, 1)),
    "a factor for each channel": lambda x: op.add(conv(x, padding=1), op.multiply(x, bias())),
    "a factor, and groups": lambda x: op.add(op.multiply(bias(), x), conv(x, padding=1, groups=2)),
    "a factor, each channel by itself": lambda x: op.add(conv(x, 5, 5, padding=2, groups=6), op.multiply(x, bias())),
}


@pytest.mark.parametrize("case", MERGED)
def test_branches(case):
    assert merged(MERGED[case]) == ["conv2d"]


def test_biases_are_one_and_what_is_no_branch_stays():
    def block(x):
        first, second = op.add(conv(x, padding=1), bias()), op.add(conv(x, 1, 1), bias())
        third = op.add(op.multiply(x, bias()), bias())
        return op.nn.relu(op.add(op.add(op.add(first, op.nn.relu(x)), second), third))

    assert sorted(merged(block)) == ["add", "add", "conv2d", "relu", "relu"]


def test_of_two_tensors_each_has_its_own():
    def build(x, y):
        return op.add(op.add(conv(x, padding=1), conv(y, padding=1)), op.add(conv(x, 1, 1), conv(y, 1, 1)))

    assert merged(build, SHAPE, SHAPE) == ["conv2d", "conv2d", "add"]


@pytest.mark.parametrize("axes", [1, 3])
def test_other_numbers_of_axes(axes):
    convolve, ones = (op.nn.conv1d, op.nn.conv3d)[axes > 1], (1,) * axes

    def build(x):
        return op.add(convolve(x, constant(5, 4, *[3] * axes), padding=1), convolve(x, constant(5, 4, *ones)))

    assert merged(build, (1, 4, 8, 7, 6)[: 2 + axes]) == [f"conv{axes}d"]


def read_twice(x):
    first = conv(x, padding=1)
    return op.multiply(op.add(first, conv(x, 1, 1)), first)


REFUSED = {
    "other strides": lambda x: op.add(conv(x, 5, 4), conv(x, padding=1, strides=2)),
    "a window that both together would make larger": lambda x: op.add(
        conv(x, 1, 5, padding=(0, 2)), conv(x, 5, 1, padding=(2, 0))
    ),
    "other groups": lambda x: op.add(conv(x, padding=1, groups=3), conv(x, 1, 1)),
    "places that do not meet": lambda x: op.add(conv(x, 2, 2, dilation=2, padding=1), conv(x, 1, 1, dilation=2)),
    "a result that is read again": read_twice,
    "one of them alone": lambda x: op.add(conv(x, padding=1), x),
    "a factor for each place": lambda x: op.add(conv(x, padding=1), op.multiply(x, constant(1, 6, 9, 7))),
    "a factor of another tensor": lambda x: op.add(conv(x, padding=1), op.multiply(op.nn.relu(x), bias())),
    "a factor, and strides that keep the size": lambda x: op.add(
        conv(x, padding=(9, 7), strides=(2, 2), dilation=(5, 4)), op.multiply(x, bias())
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    before = names(module(REFUSED[case], SHAPE))
    assert merged(REFUSED[case]) == before


def test_computed_weights_are_refused():
    def build(x, w):
        return op.add(op.nn.conv2d(x, w, padding=1), conv(x, 1, 1))

    assert merged(build, SHAPE, (6, 6, 3, 3)) == ["conv2d", "conv2d", "add"]

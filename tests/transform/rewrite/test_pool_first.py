# SPDX-License-Identifier: Apache-2.0
"""PoolFirst: the same results, with the convolution after the pooling."""

import pytest

from helpers import assert_same_results, constant, module, op, operators, random
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import PoolFirst

SHAPE = (2, 6, 9, 7)


def exchanged(build, *shapes) -> list[str]:
    """Run the pass, compare results; returns the names of the operators, in order."""
    before = module(build, *shapes)
    after = PoolFirst()(before)
    assert_same_results(before, after, *random(*shapes), tolerance=1e-4)
    done = [entry for entry in read_log(after) if entry["pass"] == "PoolFirst"]
    assert bool(done) == (operators(before) != operators(after))
    assert all(entry["flops_saved"] > 0 for entry in done)
    return operators(after)


def convolution(x, kernel=(5, 6, 1, 1), **attrs):
    return op.nn.conv2d(x, constant(*kernel), **attrs)


POOLS = {
    "plain": {"pool_size": 2, "strides": 2},
    "overlapping": {"pool_size": 3, "strides": 2},
    "padding that does not count": {"pool_size": 3, "strides": 2, "padding": 1},
    "padding that counts": {"pool_size": 3, "strides": 2, "padding": 1, "count_include_pad": True},
    "ceil": {"pool_size": 2, "strides": 2, "ceil_mode": True},
    "oblong": {"pool_size": (1, 3), "strides": (1, 3), "padding": (0, 1, 0, 0)},
    "dilated": {"pool_size": 2, "strides": 3, "dilation": 2},
}


@pytest.mark.parametrize("case", POOLS)
def test_windows(case):
    found = exchanged(lambda x: op.nn.avg_pool2d(convolution(x), **POOLS[case]), SHAPE)
    assert found == ["nn.avg_pool2d", "nn.conv2d"]


@pytest.mark.parametrize("case", [case for case in POOLS if case != "padding that counts"])
def test_with_a_bias(case):
    found = exchanged(lambda x: op.nn.avg_pool2d(op.add(convolution(x), constant(1, 5, 1, 1)), **POOLS[case]), SHAPE)
    assert found == ["nn.avg_pool2d", "nn.conv2d", "add"]


def test_groups_and_computed_weights():
    def build(x, w):
        return op.nn.avg_pool2d(op.nn.conv2d(x, w, groups=3), (2, 2), (2, 2))

    assert exchanged(build, SHAPE, (9, 2, 1, 1)) == ["nn.avg_pool2d", "nn.conv2d"]


def pool(x):
    return op.nn.avg_pool2d(x, (2, 2), (2, 2))


REFUSED = {
    "a window of its own": lambda x: pool(convolution(x, (5, 6, 3, 3))),
    "strides": lambda x: pool(convolution(x, strides=2)),
    "padding": lambda x: pool(convolution(x, padding=1)),
    "as many windows as places": lambda x: op.nn.avg_pool2d(convolution(x), (3, 3), (1, 1), (1, 1)),
    "a maximum": lambda x: op.nn.max_pool2d(convolution(x), (2, 2), (2, 2)),
    "no linear step between": lambda x: pool(op.nn.relu(convolution(x))),
    "a bias for each place": lambda x: pool(op.add(convolution(x), constant(1, 5, 9, 7))),
    "a bias, and padding that counts": lambda x: op.nn.avg_pool2d(
        op.add(convolution(x), constant(1, 5, 1, 1)), **POOLS["padding that counts"]
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    before = module(REFUSED[case], SHAPE)
    assert operators(PoolFirst()(before)) == operators(before)


def test_what_somebody_else_reads_stays():
    def build(x):
        y = convolution(x)
        return op.concat([pool(y), pool(op.nn.relu(y))], 1)

    assert operators(PoolFirst()(module(build, SHAPE))) == operators(module(build, SHAPE))

# SPDX-License-Identifier: Apache-2.0
"""SplitTransposed: the same results, without a transposed convolution."""

import pytest

from helpers import assert_same_results, constant, legalize, module, nodes, op, operators, random
from smartmem_tvm.transform import EliminateLayout, SplitTransposed


def split(shape, kernel, **attrs):
    """Run the pass, compare results; returns the names of the operators that are left."""
    transposed = getattr(op.nn, f"conv{len(shape) - 2}d_transpose")
    before = module(lambda x: transposed(x, constant(*kernel), **attrs), shape)
    after = SplitTransposed()(before)
    assert_same_results(before, after, *random(shape))
    return operators(after)


def test_before_and_after():
    found = split((1, 6, 5, 7), (6, 4, 2, 2), strides=2)
    assert found == ["nn.conv2d", "reshape", "permute_dims", "reshape", "strided_slice"]


CASES = {
    "window wider than the stride": ((2, 3, 5, 4), (3, 4, 3, 5), {"strides": 2}),
    "window narrower than the stride": ((1, 3, 5, 4), (3, 4, 2, 1), {"strides": 3}),
    "padding": ((1, 3, 5, 4), (3, 4, 4, 4), {"strides": 2, "padding": 1}),
    "padding of each side": ((1, 3, 6, 5), (3, 4, 5, 4), {"strides": 2, "padding": (0, 1, 2, 3)}),
    "more padding than a phase": ((1, 3, 6, 6), (3, 4, 7, 7), {"strides": 2, "padding": 5}),
    "output padding": ((1, 3, 4, 5), (3, 4, 3, 3), {"strides": 3, "output_padding": (1, 2)}),
    "strides of their own": ((1, 3, 4, 5), (3, 4, 3, 3), {"strides": (1, 2), "padding": 1}),
    "groups": ((1, 6, 4, 5), (6, 2, 3, 3), {"strides": 2, "groups": 3, "padding": 1}),
    "along one axis": ((2, 3, 9), (3, 4, 16), {"strides": 8, "padding": 4}),
    "along one axis, in groups": ((1, 6, 9), (6, 2, 5), {"strides": 2, "padding": (1, 2), "groups": 3}),
    "along three axes": ((1, 3, 3, 4, 5), (3, 4, 2, 3, 4), {"strides": 2, "padding": (0, 1, 2, 1, 0, 1)}),
    "along three axes, strides of their own": ((2, 2, 3, 4, 2), (2, 3, 3, 3, 3), {"strides": (1, 2, 3)}),
    "depthwise": ((1, 4, 4, 5), (4, 1, 4, 4), {"strides": 2, "groups": 4, "padding": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_results_stay_the_same(case):
    shape, kernel, attrs = CASES[case]
    assert not any("_transpose" in name for name in split(shape, kernel, **attrs))


@pytest.mark.parametrize("attrs", [{"strides": 1}, {"strides": 2, "dilation": 2}])
def test_refusals(attrs):
    assert split((1, 3, 5, 4), (3, 4, 3, 3), **attrs) == ["nn.conv2d_transpose"]


def test_computed_weights_are_left_alone():
    before = module(lambda x, w: op.nn.conv2d_transpose(x, w, strides=2), (1, 3, 5, 4), (3, 4, 2, 2))
    assert operators(SplitTransposed()(before)) == ["nn.conv2d_transpose"]


def test_the_phases_are_laid_side_by_side_by_the_convolution_itself():
    before = module(lambda x: op.nn.relu(op.nn.conv2d_transpose(x, constant(6, 4, 2, 2), strides=2)), (1, 6, 5, 7))
    after = EliminateLayout()(legalize(SplitTransposed()(before)))
    assert len(nodes(after)) == 2
    assert_same_results(before, after, *random((1, 6, 5, 7)))

# SPDX-License-Identifier: Apache-2.0
"""What kernels want of the tensors that they read."""

import pytest

from helpers import constant, legal, nodes, only_node, op
from smartmem_tvm.analysis import demands as demands_module
from smartmem_tvm.analysis.demands import demands
from smartmem_tvm.transform import EliminateLayout


def wanted(build, *shapes):
    """Sets of dimensions for each input, in the order of inputs."""
    kernel = only_node(build, *shapes).kernel
    found = demands(kernel, "k")
    return [[set(d.dims) for d in found.get(buffer, [])] for buffer in kernel.inputs]


def test_matmul_wants_the_common_dimension():
    assert wanted(op.matmul, (5, 7), (7, 3)) == [[{1}], [{0}]]


def test_a_batched_matmul():
    assert wanted(op.matmul, (2, 5, 7), (2, 7, 3)) == [[{2}], [{1}]]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_sum_wants_its_axis(axis):
    assert wanted(lambda x: op.sum(x, axis=axis), (3, 4, 5)) == [[{axis}]]


def test_a_convolution_wants_channels_and_not_the_window():
    assert wanted(lambda x, w: op.nn.conv2d(x, w), (1, 6, 9, 9), (4, 6, 3, 3)) == [[{1}], [{1, 2, 3}]]


def test_a_padded_convolution_passes_its_demand_through_the_padding():
    assert wanted(lambda x, w: op.nn.conv2d(x, w, padding=1), (1, 6, 9, 9), (4, 6, 3, 3))[0] == [{1}]


def test_a_depthwise_convolution_wants_its_window():
    x, _ = wanted(lambda x, w: op.nn.conv2d(x, w, groups=6), (1, 6, 9, 9), (6, 1, 3, 3))
    assert x == [{2, 3}]


def test_a_window_slides_along_its_rows_and_not_along_the_channels_of_a_group():
    kernel = only_node(lambda x, w: op.nn.conv2d(x, w, groups=2), (1, 6, 9, 9), (4, 3, 3, 3)).kernel
    (demand,) = demands(kernel, "k")[kernel.inputs[0]]
    assert (demand.dims, demand.slid) == ({1, 2, 3}, {2, 3})


@pytest.mark.parametrize("size, dims, slid", [(4, {1, 2, 3}, {2, 3}), (2, {1}, set())])
def test_patches_that_fill_a_texel_may_be_read_along_their_rows(size, dims, slid):
    def patches(x, w):
        return op.nn.conv2d(x, w, strides=size)

    kernel = only_node(patches, (1, 6, 8, 8), (5, 6, size, size)).kernel
    (demand,) = demands(kernel, "k")[kernel.inputs[0]]
    assert (demand.dims, demand.slid) == (dims, slid)


def test_padding_passes_on_along_what_a_window_slides():
    kernel = only_node(lambda x, w: op.nn.conv2d(x, w, padding=1, groups=2), (1, 6, 9, 9), (4, 3, 3, 3)).kernel
    (demand,) = demands(kernel, "k")[kernel.inputs[0]]
    assert (demand.dims, demand.slid) == ({1, 2, 3}, {2, 3})


def test_element_wise_kernels_want_nothing():
    assert wanted(op.add, (3, 4), (3, 4)) == [[], []]


def test_dimensions_of_one_element_are_not_wanted():
    assert wanted(lambda x: op.sum(x, axis=(1, 2)), (3, 1, 5)) == [[{2}]]


def test_the_finest_digit_of_a_split_axis():
    """Heads side by side: a step along the sum is one along the last dimension, not one along the heads."""

    def build(x):
        heads = op.reshape(op.permute_dims(x, (1, 0, 2)), (6, 20))
        return op.matmul(heads, constant(20, 3))

    (node,) = nodes(EliminateLayout()(legal(build, (4, 6, 5))))
    (x,) = (buffer for buffer in node.kernel.inputs if len(buffer.shape) == 3)
    assert [d.dims for d in demands(node.kernel, "k")[x]] == [frozenset({2})]


def test_what_is_wanted_is_worked_out_once_for_a_kernel_and_told_under_each_name(monkeypatch):
    worked_out = []
    of_load = demands_module._direct
    monkeypatch.setattr(demands_module, "_direct", lambda *args: worked_out.append(args) or of_load(*args))
    kernel = only_node(op.matmul, (5, 7), (7, 3)).kernel
    first, looked = demands(kernel, "a"), len(worked_out)
    second = demands(kernel, "b")
    assert looked and len(worked_out) == looked
    assert [d.reader for each in first.values() for d in each] == ["a", "a"]
    assert [d.reader for each in second.values() for d in each] == ["b", "b"]
    assert [d.dims for each in first.values() for d in each] == [d.dims for each in second.values() for d in each]

# SPDX-License-Identifier: Apache-2.0
"""Convolutions for matrix instructions: narrow groups together, channels innermost, terms in the order of memory."""

import random as dice

import numpy as np
import pytest
import tvm

from helpers import assert_same_results, calls, constant, legal, nodes, op, random
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.kernel import parse, shape_of
from smartmem_tvm.schedule import OrderTerms, PackChannels, WidenGroups
from smartmem_tvm.schedule.gpu.matrix.products import products_on
from smartmem_tvm.transform import EliminateLayout, FuseOperators, RoundFactors, SelectLayout

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
HOPPER = tvm.target.Target({**FACTS, "arch": "sm_90a"}, host="llvm")
OLD = tvm.target.Target({**FACTS, "arch": "sm_75"}, host="llvm")


def fused(build, *shapes, rounded=True):
    mod = FuseOperators()(EliminateLayout()(legal(build, *shapes)))
    return RoundFactors("tf32")(mod) if rounded else mod


def prepared(mod, target=HOPPER):
    """As the pipeline does for CUDA."""
    with target:
        for each in (WidenGroups(), PackChannels(), SelectLayout(products=products_on(target)), OrderTerms()):
            mod = each(mod)
    return mod


def check(build, *shapes, rounded=True):
    before = fused(build, *shapes, rounded=rounded)
    after = prepared(before)
    assert_same_results(before, after, *random(*shapes), tolerance=1e-3)
    copies = sum(each.startswith("channels") for each in calls(after))
    assert len(calls(after)) == len(calls(before)) + copies, "a kernel for the transition"
    return after


def convolution(x, channels, outputs, size=3, groups=1, seed=7, **how):
    weights = constant(outputs, channels // groups, size, size, seed=seed)
    return op.nn.conv2d(x, weights, groups=groups, **how)


def entries(mod, name):
    return [each for each in read_log(mod) if each["pass"] == name]


def stored(mod):
    return [shape_of(node.kernel.outputs[0]) for node in nodes(mod)]


def terms(func):
    """Extents of the terms of a kernel's sum, in their order; none if it has no sum."""
    sums = [each for each in parse(func).stages if each.reduction]
    return [stage.extents[var] for stage in sums for var in stage.reduction]


def kernels(mod):
    return [func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]


def two(x):
    return convolution(op.nn.relu(convolution(x, 12, 16, padding=1)), 16, 24, padding=1)


def test_what_a_convolution_writes_for_another_has_its_channels_innermost():
    after = check(two, (1, 12, 9, 7))
    assert stored(after) == [(1, 9, 7, 16), (1, 24, 9, 7)]
    assert sorted(map(terms, kernels(after))) == [[3, 3, 16], [12, 3, 3]]


def test_in_float32_nothing_moves():
    before = fused(two, (1, 12, 9, 7), rounded=False)
    after = prepared(before)
    assert stored(after) == stored(before)
    assert [terms(func) for func in kernels(after)] == [terms(func) for func in kernels(before)]


def test_a_gpu_without_matrix_instructions():
    before = fused(two, (1, 12, 9, 7))
    assert stored(prepared(before, OLD)) == stored(before)


@pytest.mark.parametrize("window", ["depthwise", "pool"])
def test_what_a_window_reads_stays(window):
    def build(x):
        y = convolution(x, 12, 16, 1)
        slid = convolution(y, 16, 16, groups=16, padding=1) if window == "depthwise" else op.nn.max_pool2d(y, (3, 3))
        return op.sum(slid, [2, 3]), convolution(y, 16, 8, 1)

    after = check(build, (1, 12, 9, 7))
    reasons = [each["reason"] for each in entries(after, "SelectLayout")]
    assert any("slides over it" in reason for reason in reasons)
    assert (1, 16, 9, 7) in stored(after)


def test_weights_that_are_computed_keep_their_order():
    def build(x, w):
        return op.nn.conv2d(op.nn.relu(convolution(x, 12, 16, padding=1)), op.exp(w), padding=1)

    after = check(build, (1, 12, 9, 7), (24, 16, 3, 3))
    assert all(found[-2:] == [3, 3] for found in map(terms, kernels(after)) if len(found) == 3)


@pytest.mark.parametrize(("groups", "channels", "outputs"), [(32, 4, 4), (16, 2, 4), (8, 8, 4), (12, 3, 5)])
def test_narrow_groups_go_together(groups, channels, outputs):
    def build(x):
        return convolution(x, groups * channels, groups * outputs, groups=groups, padding=1)

    after = check(build, (2, groups * channels, 6, 5))
    (entry,) = entries(after, "WidenGroups")
    assert entry["reason"].startswith(f"{groups} groups go ")
    ((first, *_),) = map(terms, kernels(after))
    assert first % channels == 0 and first > channels


def test_groups_of_one_channel_stay():
    after = check(lambda x: convolution(x, 16, 16, groups=16, padding=1), (1, 16, 6, 5))
    assert not entries(after, "WidenGroups")


def test_one_kernel_of_two_layers_has_the_weights_of_each():
    def build(x):
        first = convolution(x, 32, 32, groups=8, seed=1, padding=1)
        return convolution(first, 32, 32, groups=8, seed=2, padding=1)

    check(build, (1, 32, 6, 5))


@pytest.mark.parametrize("seed", range(10))
def test_random_convolutions(seed):
    """Groups, strides, dilations and paddings, one after the other, some joined or added."""
    draw = dice.Random(seed)
    groups, per = draw.choice([1, 2, 3, 8]), draw.choice([1, 2, 5, 8])
    channels = groups * per
    strides, dilation = draw.choice([1, 1, 2]), draw.choice([1, 1, 2])

    given, wide, joined = draw.choice([3, 8]), channels * draw.choice([1, 2]), draw.choice([1, 1, 2])

    def layer(x, channels, outputs, split=1):
        size = draw.choice([1, 2, 3])
        pads = [draw.randrange(2) for _ in range(4)]
        return convolution(x, channels, outputs, size, split, padding=pads, strides=strides, dilation=dilation)

    def build(x):
        y = op.nn.relu(layer(x, given, channels))
        z = layer(y, channels, wide, groups)
        z = op.concat([z] * joined, 1) if joined > 1 else z
        return layer(op.nn.silu(z), wide * joined, 9)

    check(build, (draw.choice([1, 2]), given, 33, 29))


def test_zeros_between_groups():
    from smartmem_tvm.schedule.gpu.matrix.widen_groups import _block_diagonal

    given = np.arange(1, 13, dtype="float32").reshape(4, 3, 1)  # 4 outputs in groups of 1, 3 channels each
    made = _block_diagonal(given, together=2, group=1, dims=(0, 1))
    assert made.shape == (4, 6, 1)
    np.testing.assert_array_equal(made[0, :, 0], [1, 2, 3, 0, 0, 0])
    np.testing.assert_array_equal(made[3, :, 0], [0, 0, 0, 10, 11, 12])


def packed(mod):
    return entries(mod, "PackChannels")


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("padding", [0, 3])
def test_an_image_of_few_channels_is_copied(channels, padding):
    after = check(lambda x: convolution(x, channels, 8, 7, strides=2, padding=padding), (1, channels, 270, 222))
    assert len(packed(after)) == 1
    assert stored(after)[0] == (1, 270, 222, 4)
    assert [7, 7, 4] in map(terms, kernels(after))


def test_what_is_added_follows_the_sum():
    """A branch that only an epilogue reads is stored as that stores its results."""

    def build(x):
        y = op.nn.relu(convolution(x, 12, 16))
        both = op.nn.relu(op.add(convolution(y, 16, 24), convolution(x, 12, 24, 5)))
        return convolution(both, 24, 8, 1)

    after = check(build, (1, 12, 19, 17))
    reasons = [each["reason"] for each in entries(after, "SelectLayout")]
    assert "its readers store their results so" in reasons
    assert stored(after).count((1, 15, 13, 24)) == 2


def test_two_convolutions_share_a_copy():
    def build(x):
        return convolution(x, 3, 8, 7, strides=2, padding=3), convolution(x, 3, 16, 7, strides=2, padding=3)

    after = check(build, (1, 3, 224, 224))
    assert len(packed(after)) == 2
    assert stored(after).count((1, 224, 224, 4)) == 1


@pytest.mark.parametrize(
    ("shape", "build"),
    [
        ((1, 3, 32, 32), lambda x: convolution(x, 3, 8, 7, strides=2, padding=3)),  # a launch more takes longer
        ((1, 5, 224, 224), lambda x: convolution(x, 5, 8, 7, strides=2, padding=3)),  # more channels
        ((1, 3, 224, 224), lambda x: convolution(x, 3, 8, 8, strides=8)),  # four numbers of a patch are neighbours
    ],
)
def test_images_that_are_read_as_they_are(shape, build):
    assert not packed(check(build, shape))


def test_an_image_that_is_normalised_on_its_way():
    """Means of channels have no fourth: what is computed before the padding is read as it was."""

    def build(x):
        return convolution(op.subtract(x, constant(1, 3, 1, 1)), 3, 8, 7, strides=2, padding=3)

    check(build, (1, 3, 224, 224))


@pytest.mark.parametrize("tokens", [True, False])
def test_a_window_over_tokens_writes_them_in_order(tokens):
    """Its channels lie next to each other in what it reads: so they may in what it writes for a product."""

    def build(x):
        image = op.permute_dims(op.reshape(x, (1, 9, 7, 16)), [0, 3, 1, 2]) if tokens else x
        slid = convolution(image, 16, 16, groups=16, padding=1)
        return convolution(slid, 16, 8, 1)

    after = check(build, (1, 63, 16) if tokens else (1, 16, 9, 7))
    assert ((1, 9, 7, 16) in stored(after)) == tokens

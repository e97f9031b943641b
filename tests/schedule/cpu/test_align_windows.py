# SPDX-License-Identifier: Apache-2.0
"""AlignWindows: windows read their operands in the order of their results; nothing else changes."""

import numpy as np
import pytest
import tvm

from covering import pairs
from helpers import assert_same_results, constant, legal, nodes, op, random
from smartmem_tvm.ir.kernel import CONSTANTS, emit, shape_of
from smartmem_tvm.pipeline import Options, graph_phases, run_phases
from smartmem_tvm.schedule import AlignWindows, ScheduleKernels
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.target import parse_target

CPU = parse_target("cpu")


def depthwise(channels=8, side=3, height=6, width=5, multiplier=1, **options):
    """A depthwise convolution from tokens to tokens."""

    def build(x):
        image = op.reshape(op.permute_dims(x, (0, 2, 1)), (2, channels, height, width))
        weight = constant(channels * multiplier, 1, side, side)
        y = op.nn.conv2d(image, weight, padding=side // 2, groups=channels, **options)
        return op.permute_dims(op.reshape(y, (2, channels * multiplier, height * width)), (0, 2, 1))

    return build, (2, height * width, channels)


def graph(build, *shapes):
    with CPU:
        return run_phases(legal(build, *shapes), graph_phases(CPU), Options())


def aligned(build, *shapes):
    before = graph(build, *shapes)
    after = AlignWindows()(before)
    assert_same_results(before, after, *random(*shapes))
    return before, after


def orders(mod) -> list[tuple[int, ...]]:
    """Shapes of all that the only kernel keeps inside and of its constants."""
    (node,) = nodes(mod)
    inside = [shape_of(buffer) for buffer in node.kernel.intermediates]
    return [*inside, *(shape_of(buffer) for buffer in node.constants)]


def rules(mod) -> list[str]:
    with CPU:
        return [each["name"] for each in kernel_rules(ScheduleKernels()(mod)).values()]


def test_a_depthwise_convolution_of_tokens():
    before, after = aligned(*depthwise())
    assert (2, 8, 8, 7) in orders(before) and (8, 1, 3, 3) in orders(before)
    assert (2, 8, 7, 8) in orders(after) and (1, 3, 3, 8) in orders(after)
    assert rules(before) == ["Elementwise + Rows"] and rules(after) == ["Depthwise"]


@pytest.mark.parametrize(("channels", "size", "side"), pairs([7, 8, 16], [(7, 7), (1, 9), (11, 4)], [3, 5, 7]), ids=str)
def test_sizes(channels, size, side):
    build, shape = depthwise(channels, side, *size)
    before, after = aligned(build, shape)
    assert orders(before) != orders(after)


def test_more_channels_than_came_in():
    """The padded copy is read at c // 2: it stays, and so does all."""
    before, after = aligned(*depthwise(multiplier=2))
    assert orders(before) == orders(after)


def test_an_epilogue_and_a_residual():
    build, shape = depthwise(16)

    def block(x):
        y = op.add(build(x), constant(16))
        return op.nn.gelu(op.add(y, x))

    before, after = aligned(block, shape)
    assert rules(before) == ["Elementwise + Rows"] and rules(after) == ["Depthwise"]


def test_an_image_is_in_order_already():
    build = lambda x: op.nn.conv2d(x, constant(8, 1, 3, 3), padding=1, groups=8)  # noqa: E731
    before, after = aligned(build, (2, 8, 6, 5))
    tvm.ir.assert_structural_equal(before, after)


def to_tokens(groups, channels=24):
    """A convolution of planes, whose result has its channels innermost."""

    def build(x):
        y = op.nn.conv2d(x, constant(channels, channels // groups, 3, 3), padding=1, groups=groups)
        return op.permute_dims(op.reshape(y, (2, channels, 30)), (0, 2, 1))

    return build, (2, channels, 6, 5)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_convolution_that_adds_up_many_channels_is_none_of_its_business(groups):
    """Nor one that adds up three or six: they are no part of a vector."""
    before, after = aligned(*to_tokens(groups))
    tvm.ir.assert_structural_equal(before, after)


@pytest.mark.parametrize("groups", [3, 6, 12])
def test_a_convolution_that_adds_up_few_channels(groups):
    before, after = aligned(*to_tokens(groups))
    assert (2, 24, 8, 7) in orders(before) and (24, 24 // groups, 3, 3) in orders(before)
    assert (2, 8, 7, 24) in orders(after) and (24 // groups, 3, 3, 24) in orders(after)
    assert rules(after) == ["Depthwise"]


def test_a_weight_that_is_no_constant_stays():
    def build(x, weight):
        image = op.reshape(op.permute_dims(x, (0, 2, 1)), (2, 8, 6, 5))
        y = op.nn.conv2d(image, weight, padding=1, groups=8)
        return op.permute_dims(op.reshape(y, (2, 8, 30)), (0, 2, 1))

    before, after = aligned(build, (2, 30, 8), (8, 1, 3, 3))
    tvm.ir.assert_structural_equal(before, after)


def test_two_calls_of_one_kernel_keep_their_own_weights():
    def build(x):
        for seed in (1, 2):
            image = op.reshape(op.permute_dims(op.nn.softmax(x, axis=-1), (0, 2, 1)), (2, 8, 6, 5))
            y = op.nn.conv2d(image, constant(8, 1, 3, 3, seed=seed), padding=1, groups=8)
            x = op.add(x, op.permute_dims(op.reshape(y, (2, 8, 30)), (0, 2, 1)))
        return x

    _, after = aligned(build, (2, 30, 8))
    windows = [node for node in nodes(after) if node.constants]
    assert [shape_of(node.constants[0]) for node in windows] == [(1, 3, 3, 8)] * 2
    first, second = (next(arg for arg in node.args if isinstance(arg, tvm.ir.Constant)) for node in windows)
    assert not np.array_equal(first.value.numpy(), second.value.numpy())


def test_a_pool_of_tokens():
    def build(x):
        image = op.reshape(op.permute_dims(x, (0, 2, 1)), (2, 8, 6, 5))
        y = op.nn.max_pool2d(image, (3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
        return op.permute_dims(op.reshape(y, (2, 8, 30)), (0, 2, 1))

    before, after = aligned(build, (2, 30, 8))
    assert orders(before) != orders(after)


def test_a_kernel_alone_says_itself_what_is_constant():
    """As it is measured: without a call."""
    (node,) = nodes(graph(*depthwise()))
    place = next(n for n, buffer in enumerate(node.kernel.inputs) if shape_of(buffer) == (8, 1, 3, 3))
    for attrs, shape in (({CONSTANTS: [place]}, (1, 3, 3, 8)), ({}, (8, 1, 3, 3))):
        alone = tvm.IRModule({"main": emit(node.kernel, attrs).with_attr("global_symbol", "main")})
        (func,) = AlignWindows()(alone).functions.values()
        assert tuple(int(dim) for dim in func.params[place].shape) == shape


def test_half_and_double():
    for dtype, tolerance in (("float64", 1e-12), ("float16", 5e-3)):
        build, shape = depthwise()

        def cast(x, build=build, dtype=dtype):
            return op.astype(build(op.astype(x, "float32")), dtype)

        with CPU:
            before = run_phases(legal(cast, shape, dtype=dtype), graph_phases(CPU), Options())
        (x,) = random(shape)
        assert_same_results(before, AlignWindows()(before), x.astype(dtype), tolerance=tolerance)


def test_through_to_code():
    import smartmem_tvm as sm

    build, shape = depthwise(24, 5, 13, 11)
    (x,) = random(shape)
    (found,) = sm.compile(legal(build, shape), CPU).run(x)
    (plain,) = sm.compile(legal(build, shape), CPU, Options(schedule=False)).run(x)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-5)


def test_tokens_that_become_planes():
    """The lanes are channels, which lie next to each other in the operand: so do the weights, though no result does."""

    def build(x):
        image = op.reshape(op.permute_dims(x, (0, 2, 1)), (2, 8, 6, 5))
        return op.nn.conv2d(image, constant(8, 1, 3, 3), padding=1, groups=8)

    before, after = aligned(build, (2, 30, 8))
    assert (8, 1, 3, 3) in orders(before) and (1, 3, 3, 8) in orders(after)
    assert rules(after) == ["Depthwise"]


def along_channels(build, shape):
    """The graph with the tensors between its convolutions stored along their channels."""
    return graph(build, shape), shape


def test_a_padded_copy_lies_as_what_it_copies():
    """And the sum lies as what is made of it; the weights of a product stay."""

    def build(x):
        y = op.nn.conv2d(x, constant(16, 6, 1, 1))
        return op.nn.conv2d(op.nn.relu(op.nn.conv2d(y, constant(24, 16, 3, 3), padding=1)), constant(8, 24, 1, 1))

    before, shape = along_channels(build, (1, 6, 9, 7))
    after = AlignWindows()(before)
    assert_same_results(before, after, *random(shape))
    (middle,) = [node for node in nodes(after) if len(node.kernel.stages) > 2]
    inside = [shape_of(buffer) for buffer in middle.kernel.intermediates]
    assert (1, 11, 9, 16) in inside and (1, 9, 7, 24) in inside
    assert "Elementwise + Matmul" in rules(after)


def test_a_gate_reads_its_weights_along_the_channels():
    def build(x):
        y = op.nn.conv2d(x, constant(32, 8, 1, 1))
        gate = op.nn.relu(op.nn.conv2d(op.mean(y, axis=[2, 3], keepdims=True), constant(8, 32, 1, 1)))
        gate = op.sigmoid(op.nn.conv2d(gate, constant(32, 8, 1, 1)))
        return op.nn.conv2d(op.multiply(y, gate), constant(8, 32, 1, 1))

    before, shape = along_channels(build, (1, 8, 6, 5))
    after = AlignWindows()(before)
    assert_same_results(before, after, *random(shape))
    weights = [shape_of(buffer) for node in nodes(after) for buffer in node.constants]
    assert any(shape[-1] == 32 and shape[0] != 32 for shape in weights)

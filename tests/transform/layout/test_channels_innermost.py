# SPDX-License-Identifier: Apache-2.0
"""ChannelsInnermost: what products pass on lies along its channels, and so does all that is walked through with it."""

import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm as sm
from helpers import assert_same_results, calls, constant, legal, op, random
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.target import host_target
from smartmem_tvm.transform import ChannelsInnermost, EliminateLayout, FuseOperators

KEPT = "kept"


def run(build, *shapes, windows=True):
    """The decisions, by tensor's shape and reason; the results are those of before."""
    before = FuseOperators()(EliminateLayout()(legal(build, *shapes)))
    after = ChannelsInnermost(windows)(before)
    assert_same_results(before, after, *random(*shapes))
    assert len(calls(before)) == len(calls(after)), "a kernel for the transition"
    return [entry for entry in read_log(after) if entry["pass"] == "ChannelsInnermost"]


def conv(x, out, c, k=1, groups=1, **how):
    return op.nn.conv2d(x, constant(out, c // groups, k, k), groups=groups, **how)


def moved(entries) -> list:
    return [entry["order"] for entry in entries if entry["action"] != KEPT]


def test_between_two_convolutions():
    first, last = run(lambda x: conv(op.nn.relu(conv(x, 24, 5, 3)), 9, 24), (1, 5, 8, 7))
    assert first["order"] == [0, 2, 3, 1] and first["reason"] == "products sum up its channels, or make them"
    assert last["action"] == KEPT and last["reason"] == "a result of the model keeps the user's order"


def test_what_is_added_and_depthwise_windows_follow():
    def build(x):
        y = conv(x, 16, 8)
        z = op.nn.relu(conv(y, 16, 16, 3, groups=16, padding=1))
        return conv(op.nn.max_pool2d(op.add(y, conv(z, 16, 16)), 2), 8, 16)

    *between, last = run(build, (1, 8, 6, 6))
    assert len(between) > 2 and moved(between) == [[0, 2, 3, 1]] * len(between) and last["action"] == KEPT


@pytest.mark.parametrize("square", [6, 16])
def test_square_pictures(square):
    """As many lines, columns and channels: only products know which are which."""
    entries = run(lambda x: conv(conv(x, 16, 16, 3, padding=1), 16, 16), (1, 16, square, square))
    assert moved(entries) == [[0, 2, 3, 1]]


def test_along_one_axis_and_three():
    def one(x):
        return op.nn.conv1d(op.nn.conv1d(x, constant(12, 6, 3)), constant(4, 12, 1))

    def three(x):
        return op.nn.conv3d(op.nn.conv3d(x, constant(8, 2, 1, 3, 1)), constant(4, 8, 1, 1, 1))

    assert moved(run(one, (2, 6, 20))) == [[0, 2, 1]]
    assert moved(run(three, (1, 2, 4, 5, 6))) == [[0, 2, 3, 4, 1]]


def shuffle(x):
    y = conv(x, 16, 8)
    y = op.reshape(op.permute_dims(op.reshape(y, (1, 2, 8, 5, 5)), (0, 2, 1, 3, 4)), (1, 16, 5, 5))
    return conv(y, 8, 16)


def norm_of_groups(x):
    y = op.reshape(conv(x, 16, 8), (1, 4, 4, 25))
    y = op.divide(
        y, op.add(op.sqrt(op.mean(op.multiply(y, y), axis=[2, 3], keepdims=True)), relax.const(1.0, "float32"))
    )
    return conv(op.reshape(y, (1, 16, 5, 5)), 8, 16)


def mixed_tokens(x):
    """Tokens are mixed by weights, and so are channels."""
    y = op.matmul(x, constant(12, 12))
    return op.matmul(
        op.permute_dims(op.matmul(op.permute_dims(y, (0, 2, 1)), constant(9, 9)), (0, 2, 1)), constant(12, 8)
    )


def matrices_of_channels(x):
    y = conv(x, 16, 8)
    return conv(op.matmul(y, op.exp(y)), 8, 16)


@pytest.mark.parametrize(
    ("build", "shape", "reason"),
    [
        (shuffle, (1, 8, 5, 5), "walks through its channels in no fixed steps"),
        (norm_of_groups, (1, 8, 5, 5), "sums up groups of its channels"),
        (matrices_of_channels, (1, 8, 5, 5), "multiplies matrices of each channel"),
        (mixed_tokens, (1, 9, 12), "products see channels in several of its dimensions"),
        (lambda x: conv(conv(x, 4, 8), 8, 4), (1, 8, 5, 5), "it has 4 channels only"),
    ],
)
def test_what_stays(build, shape, reason):
    entries = run(build, shape)
    assert not moved(entries) and any(reason in entry["reason"] for entry in entries)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.matmul(op.nn.relu(op.matmul(x, constant(12, 20))), constant(20, 8)),
        lambda x: op.nn.softmax(op.sum(op.exp(op.nn.relu(x)), axis=0)),
    ],
)
def test_of_others_nothing_is_said(build):
    """Tokens have their channels innermost; sums without weights have none."""
    assert not run(build, (3, 9, 12))


def test_windows_that_want_planes():
    """Patches do not overlap: they are no such windows."""

    def overlapping(x):
        return conv(conv(x, 16, 8, 3), 8, 16)

    def patches(x):
        return conv(conv(x, 16, 8, 2, strides=2), 8, 16)

    assert not run(overlapping, (1, 8, 6, 6), windows=False)
    assert moved(run(patches, (1, 8, 6, 6), windows=False)) == [[0, 2, 3, 1]]


def drawn(seed):
    """A network of convolutions, pools, gates, branches and joined tensors, and its input's shape."""
    draw = np.random.default_rng(seed)
    n, c, h, w = int(draw.choice([1, 2])), int(draw.choice([3, 8, 17])), *map(int, draw.integers(7, 20, 2))

    def build(x):
        channels, kept = c, []
        for _ in range(int(draw.integers(4, 8))):
            kind = draw.choice(["conv", "window", "depthwise", "groups", "pool", "gate", "join", "add"])
            if kind == "conv":
                out = int(draw.choice([8, 13, 16, 32, 40]))
                x, channels = op.nn.relu(conv(x, out, channels)), out
            elif kind == "window":
                out, k = int(draw.choice([8, 16, 24])), int(draw.choice([2, 3, 5]))
                how = {"padding": int(draw.integers(1, 3)), "strides": int(draw.choice([1, 1, 2]))}
                x, channels = op.nn.silu(conv(x, out, channels, k, dilation=int(draw.choice([1, 1, 2])), **how)), out
            elif kind == "depthwise":
                x = conv(x, channels, channels, 3, groups=channels, padding=1, strides=int(draw.choice([1, 2])))
            elif kind == "groups" and channels % 8 == 0:
                x = conv(x, channels, channels, 3, groups=int(draw.choice([2, 4])), padding=1)
            elif kind == "pool":
                pool = op.nn.max_pool2d if draw.random() < 0.5 else op.nn.avg_pool2d
                x = pool(x, 3, strides=int(draw.choice([1, 2])), padding=1)
            elif kind == "gate":
                gate = op.nn.relu(conv(op.mean(x, axis=[2, 3], keepdims=True), 8, channels))
                x = op.multiply(x, op.sigmoid(conv(gate, channels, 8)))
            elif kind == "join":
                x, channels = op.concat([x, conv(x, 8, channels)], axis=1), channels + 8
            else:
                x = op.add(x, conv(x, channels, channels, 3, padding=1))
            kept.append(channels)
        return conv(x, 8, channels)

    return build, (n, c, h, w)


@pytest.mark.parametrize("seed", range(2))
def test_networks_drawn_at_random(seed):
    """Compiled with and without, on two targets with one core and four, the results are the same."""
    build, shape = drawn(seed)
    target, cores = [("llvm", 1), ("host", 4), ("llvm", 4), ("host", 1)][seed]
    kind = tvm.target.Target("llvm") if target == "llvm" else host_target()
    target, (x,) = tvm.target.Target({**kind.export(), "num-cores": cores}), random(shape)
    mod = legal(build, shape)
    plain, ours = (sm.compile(mod, target, sm.Options(layout=each)).run(x)[0] for each in (False, True))
    assert np.abs(plain - ours).max() <= 2e-5 * max(1.0, np.abs(plain).max())

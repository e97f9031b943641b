# SPDX-License-Identifier: Apache-2.0
"""Lines that sliding windows read: which axis a thread slides on, and weights with their channels innermost."""

import numpy as np
import pytest
import tvm
from tvm import te, topi

from gpu_rule_checks import check
from helpers import assert_same_results, calls, constant, legal, op, random
from smartmem_tvm.ir.kernel import parse, shape_of
from smartmem_tvm.schedule import TurnWeights
from smartmem_tvm.schedule.core.reduction import reduction_of
from smartmem_tvm.schedule.gpu.cost import turn_alone
from smartmem_tvm.schedule.gpu.window.lines import Lines
from smartmem_tvm.schedule.gpu.window.window import GpuWindowParams, WindowSlide
from smartmem_tvm.transform import EliminateLayout, FuseOperators

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024}, host="llvm")


def depthwise(n, c, h, w, size):
    x, k = te.placeholder((n, c, h, w), name="x"), te.placeholder((c, 1, size, size), name="k")
    return [x, k], topi.nn.depthwise_conv2d_nchw(x, k, 1, size // 2, 1)


def lines_of(n, c, h, w, size):
    inputs, output = depthwise(n, c, h, w, size)
    kernel = WindowSlide().prepare(parse(te.create_prim_func([*inputs, output])))
    reduction = reduction_of(kernel)
    return Lines(reduction, reduction.spatial), reduction


def test_threads_that_are_eight_elements_apart_touch_eight_lines():
    """Floats, rows of 64: a load touches one line or eight, of 14 x 7 values or 7 x 14; so does a store."""
    lines, reduction = lines_of(1, 4, 64, 64, 7)
    *_, down, across = reduction.spatial
    taps = reduction.reduce
    issued = (49 * 8 + 3 * (98 + 49)) / 4

    def cycles(tile) -> float:
        work = lines.work(tile, taps)
        return work.turns * turn_alone(work, GpuWindowParams())

    assert cycles({down: 8}) == (98 + 49 + 8 + issued) / 8
    assert cycles({across: 8}) == (98 * 8 + 49 + 8 * 8 + issued) / 8


def reference(x, k):
    c, h, w = x.shape[1:]
    size = k.shape[-1]
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), *((size // 2,) * 2,) * 2))
    return sum(
        padded[:, :, p : p + h, q : q + w] * k[:, 0, p, q].reshape(1, c, 1, 1) for p in range(size) for q in range(size)
    )


@pytest.mark.parametrize("shape", [(2, 96, 56, 56, 7), (1, 1, 14, 14, 5), (3, 40, 7, 7, 3), (1, 5, 31, 37, 3)], ids=str)
def test_values(shape):
    inputs, output = depthwise(*shape)
    check(lambda params: WindowSlide(params), inputs, output, reference)


def tokens(channels, size, groups=None):
    """A window over an image whose channels are innermost, as tokens are."""

    def build(x):
        image = op.permute_dims(x, (0, 3, 1, 2))
        weights = constant(channels, channels // (groups or channels), size, size)
        return op.nn.conv2d(image, weights, padding=size // 2, groups=groups or channels)

    return FuseOperators()(EliminateLayout()(legal(build, (2, 9, 9, channels))))


def turned(mod):
    with CUDA:
        after = TurnWeights()(mod)
    assert_same_results(mod, after, *random((2, 9, 9, int(mod["main"].params[0].ty.shape[3]))), tolerance=1e-5)
    (kernel,) = (parse(after[name]) for name in calls(after))
    return sorted(map(shape_of, kernel.inputs), key=len)


def test_weights_are_turned_where_neighbouring_threads_have_neighbouring_channels():
    assert (1, 3, 3, 32) in turned(tokens(32, 3))


def test_few_channels_and_many_that_are_shared_stay():
    assert (8, 1, 3, 3) in turned(tokens(8, 3))
    assert (32, 32, 3, 3) in turned(tokens(32, 3, groups=1))


def test_an_image_with_its_columns_innermost_stays():
    build = lambda x: op.nn.conv2d(x, constant(32, 1, 3, 3), padding=1, groups=32)  # noqa: E731
    mod = FuseOperators()(EliminateLayout()(legal(build, (2, 32, 9, 9))))
    with CUDA:
        assert TurnWeights()(mod).script() == mod.script()


def test_weights_that_are_arguments_stay():
    build = lambda x, k: op.nn.conv2d(op.permute_dims(x, (0, 3, 1, 2)), k, padding=1, groups=32)  # noqa: E731
    mod = FuseOperators()(EliminateLayout()(legal(build, (2, 9, 9, 32), (32, 1, 3, 3))))
    with CUDA:
        assert TurnWeights()(mod).script() == mod.script()

# SPDX-License-Identifier: Apache-2.0
"""Sliding-window schedules (pooling, sums over outer axes, vector times matrix) against numpy."""

import numpy as np
import pytest
from tvm import te, topi

SIZES = [(1, 1, 4, 4), (2, 3, 7, 7), (1, 5, 13, 29), (1, 2, 64, 64)]


def windows(x, size, stride, pad, fill):
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("geometry", [(2, 2, 0), (3, 1, 1), (3, 2, 1)])
def test_max_pool(check, shape, geometry):
    size, stride, pad = geometry
    x = te.placeholder(shape, name="x")
    output = topi.nn.pool2d(x, [size] * 2, [stride] * 2, [1, 1], [pad] * 4, "max")
    rule = "InSequence" if pad else "Window"
    check([x], output, lambda x: windows(x, size, stride, pad, -np.inf).max((4, 5)), rule)


@pytest.mark.parametrize("shape", SIZES)
def test_average_pool(check, shape):
    x = te.placeholder(shape, name="x")
    output = topi.nn.pool2d(x, [2, 2], [2, 2], [1, 1], [0] * 4, "avg")
    check([x], output, lambda x: windows(x, 2, 2, 0, 0).mean((4, 5)), "Window")


@pytest.mark.parametrize("shape", [(3, 8), (49, 100), (7, 1), (5, 67)])
def test_sum_over_the_outer_axis(check, shape):
    x = te.placeholder(shape, name="x")
    check([x], topi.sum(x, axis=0), lambda x: x.sum(0), "Window" if shape[1] > 1 else "Rows")


def test_vector_times_matrix(check):
    x, w = te.placeholder((1, 40), name="x"), te.placeholder((40, 77), name="w")
    k = te.reduce_axis((0, 40), "k")
    output = te.compute((1, 77), lambda i, j: te.sum(x[i, k] * w[k, j], k))
    check([x, w], output, lambda x, w: x @ w, "Window")


def test_depthwise_channels_last(check):
    """Channels are the fastest axis: they are the lanes."""
    x, w = te.placeholder((9, 8, 20), name="x"), te.placeholder((3, 3, 20), name="w")
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")
    output = te.compute((7, 6, 20), lambda y, z, c: te.sum(x[y + p, z + q, c] * w[p, q, c], [p, q]))

    def reference(x, w):
        return np.einsum("yxcpq,pqc->yxc", np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(0, 1)), w)

    check([x, w], output, reference, "Window")

# SPDX-License-Identifier: Apache-2.0
"""Choices, running sums and products on an OpenCL device: as numpy has them, and by no last-resort rule."""

import numpy as np
import pytest

from helpers import module, op
from smartmem_tvm import compile
from smartmem_tvm.schedule.choose import dlight_rules
from smartmem_tvm.target import parse_target

TARGET = parse_target("opencl")
LAST_RESORTS = {rule.name for rule in dlight_rules()} | {"TVM", "-"}


def check(build, x, *expected):
    compiled = compile(module(build, (x.shape, str(x.dtype))), TARGET)
    names = {rule["name"] for rule in compiled.rules.values()}
    assert names and not names & LAST_RESORTS
    for got, want in zip(compiled.run(x), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def some(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.mark.parametrize(
    ("shape", "axis", "k"), [((1, 49, 49), -1, 16), ((3, 1, 701), 2, 1), ((31, 5), 0, 31), ((1, 1), 1, 1)]
)
def test_topk(shape, axis, k):
    x = some(*shape)
    order = np.take(np.argsort(-x, axis, kind="stable"), np.arange(k), axis)
    check(lambda x: op.topk(x, k, axis, dtype="int64"), x, np.take_along_axis(x, order, axis), order)


def test_sorting_with_infinities_and_nan():
    x = np.random.default_rng(0).integers(0, 4, (6, 37)).astype("float32")
    x[x == 3] = np.nan
    x[0, 3], x[1, 4] = np.inf, -np.inf
    check(lambda x: op.argsort(x, 1), x, np.argsort(x, 1, kind="stable"))


@pytest.mark.device
@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 33), 1), ((3, 257, 2), 1), ((1, 1), 0), ((2, 3, 5), None), ((70001,), 0)]
)
def test_running_sums(shape, axis):
    x = some(*shape)
    check(lambda x: op.cumsum(x, axis), x, np.cumsum(x, axis, "float64"))


@pytest.mark.parametrize("axis", [0, 1])
def test_products(axis):
    x = np.exp(some(7, 53) / 7)
    check(lambda x: op.cumprod(x, axis), x, np.cumprod(x, axis, "float64"))
    check(lambda x: op.prod(x, [axis]), x, np.prod(x, axis, "float64"))


@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 33), 1), ((3, 257, 2), 1), ((1, 1), 0), ((2, 3, 5), None), ((3, 50021), 1)]
)
def test_argmax(shape, axis):
    x = some(*shape)
    check(lambda x: op.argmax(x, axis), x, np.argmax(x, axis))
    check(lambda x: op.argmin(op.negative(x), axis), x, np.argmax(x, axis))

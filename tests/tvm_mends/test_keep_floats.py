# SPDX-License-Identifier: Apache-2.0
"""KeepFloats: arithmetic of floats that TVM simplifies as if they were real numbers."""

import numpy as np
import pytest
from tvm import relax

from helpers import legal, op, run
from smartmem_tvm.transform.fuse import fuse_operators
from smartmem_tvm.tvm_mends import KeepFloats

X = np.array([np.inf, np.nan, -np.inf, 1, 0, 1e30, -2, 3], "float32")
Y = np.array([1, 1, np.nan, 1, 1, 1, 2, -np.inf], "float32")

ZERO, ONE = (relax.const(value, "float32") for value in (0.0, 1.0))
FUNCTIONS = {
    "difference": (lambda x, _: op.subtract(x, x), lambda x, _: x - x),
    "of a sum": (lambda x, y: op.subtract(op.add(x, y), x), lambda x, y: (x + y) - x),
    "from a sum": (lambda x, y: op.subtract(x, op.add(y, x)), lambda x, y: x - (y + x)),
    "of a constant": (
        lambda x, _: op.subtract(op.add(x, op.full_like(x, ONE)), op.full_like(x, ONE)),
        lambda x, _: (x + np.float32(1)) - np.float32(1),
    ),
    "zero by": (lambda x, _: op.divide(op.full_like(x, ZERO), x), lambda x, _: np.float32(0) / x),
    "equal": (lambda x, _: op.equal(x, x), lambda x, _: x == x),
    "not equal": (lambda x, _: op.not_equal(x, x), lambda x, _: x != x),
    "not less": (lambda x, y: op.logical_not(op.less(x, y)), lambda x, y: ~(x < y)),
    "neither": (
        lambda x, y: op.logical_not(op.logical_or(op.less(x, y), op.less_equal(y, x))),
        lambda x, y: ~((x < y) | (y <= x)),
    ),
    "either": (lambda x, y: op.logical_or(op.less(x, y), op.greater_equal(x, y)), lambda x, y: (x < y) | (x >= y)),
    "both": (lambda x, y: op.logical_and(op.less(x, y), op.greater_equal(x, y)), lambda x, y: (x < y) & (x >= y)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_floats(name):
    build, numpy_of = FUNCTIONS[name]
    mod = fuse_operators.FuseOperators()(legal(build, X.shape, Y.shape))
    with np.errstate(invalid="ignore", divide="ignore"):
        np.testing.assert_array_equal(run(KeepFloats()(mod), X, Y)[0], numpy_of(X, Y))


@pytest.mark.parametrize(
    "build",
    [
        lambda x, y: op.subtract(x, y),
        lambda x, _: op.subtract(x, op.tanh(x)),
        lambda x, y: op.equal(x, y),
        lambda x, y: op.logical_and(op.less(x, y), op.less(y, op.tanh(x))),
        lambda x, y: op.logical_not(op.equal(x, y)),
    ],
)
def test_what_is_not_simplified_stays(build):
    mod = fuse_operators.FuseOperators()(legal(build, X.shape, Y.shape))
    assert KeepFloats()(mod).same_as(mod)


def test_integers_are_left_to_the_simplifier():
    mod = legal(lambda x: op.subtract(x, x), (8,), dtype="int32")
    assert KeepFloats()(mod).same_as(mod)

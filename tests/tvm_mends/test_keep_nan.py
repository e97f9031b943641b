# SPDX-License-Identifier: Apache-2.0
"""KeepNan: element-wise maxima and minima of what is no number."""

import numpy as np
import pytest
import tvm

from helpers import legal, op, run
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.transform import FuseOperators, VectorizeMath
from smartmem_tvm.tvm_mends import KeepNan

X = np.array([np.nan, 1, np.nan, -3, np.inf, -np.inf], "float32")
Y = np.array([2, np.nan, np.nan, -5, 7, np.nan], "float32")

FUNCTIONS = {
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "clip": (lambda x: op.clip(x, -1, 2), lambda x: np.clip(x, -1, 2)),
    "constant first": (lambda x: op.minimum(op.full_like(x, tvm.relax.const(0.0)), x), lambda x: np.minimum(0, x)),
    "maximum": (op.maximum, np.maximum),
    "minimum": (op.minimum, np.minimum),
}


def kept(mod):
    with tvm.target.Target("llvm"):
        return KeepNan()(mod)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_number_stays_none(name):
    build, numpy_of = FUNCTIONS[name]
    inputs = (X, Y) if name.endswith("imum") else (X,)
    (got,) = run(kept(legal(build, *(each.shape for each in inputs))), *inputs)
    np.testing.assert_array_equal(got, numpy_of(*inputs))


def test_functions_of_functions():
    """Clamps of their formulas are in variables that are bound before the store."""
    mod = FuseOperators()(legal(lambda x: op.tanh(op.erf(x)), X.shape))
    with tvm.target.Target({"kind": "llvm", "num-cores": 1}):
        mod = VectorizeMath()(ScheduleKernels()(mod))
    (got,) = run(kept(mod), X)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(X))


def test_a_maximum_of_maxima_along_many_axes():
    arrays = [np.roll(X, i).reshape(1, 6, 1, 1, 1) for i in range(4)]
    build = lambda a, b, c, d: op.maximum(op.maximum(a, b), op.maximum(c, d))  # noqa: E731
    mod = FuseOperators()(legal(build, *(each.shape for each in arrays)))
    (got,) = run(kept(mod), *arrays)
    np.testing.assert_array_equal(got, np.maximum(np.maximum(*arrays[:2]), np.maximum(*arrays[2:])))


def test_integers_and_reductions_are_left_alone():
    for mod in (legal(lambda x: op.max(x, 0), (6,)), legal(op.maximum, (6,), (6,), dtype="int32")):
        assert kept(mod).same_as(mod)


def test_other_targets_are_left_alone():
    mod = legal(op.nn.relu, (6,))
    with tvm.target.Target("opencl"):
        assert KeepNan()(mod).same_as(mod)


def test_many_maxima_stay_short():
    """An operand is written once: else a chain of 40 would have 2^40 of the first."""

    def chain(x, y):
        for _ in range(40):
            y = op.maximum(y, x)
        return y

    (got,) = run(kept(FuseOperators()(legal(chain, X.shape, Y.shape))), X, Y)
    np.testing.assert_array_equal(got, np.maximum(X, Y))

# SPDX-License-Identifier: Apache-2.0
"""Reductions over outer axes, and a vector times a matrix, against numpy."""

import numpy as np
import pytest
import tvm
from tvm import te, topi


@pytest.mark.parametrize(
    "shape", [(3, 8), (49, 100), (7, 1), (5, 67), (1024, 9), (1027, 16), (3, 700, 21), (40, 64, 16)]
)
def test_sum_over_the_outer_axis(check, shape):
    x = te.placeholder(shape, name="x")
    axes = tuple(range(len(shape) - 1))
    check([x], topi.sum(x, axis=axes), lambda x: x.sum(axes), "Window" if shape[-1] > 1 else "Rows")


def test_a_long_sum_keeps_its_digits(check):
    """One accumulator of 40,000 numbers would be off by some 5e-6."""
    shape = (200, 200, 16)
    numbers = np.random.default_rng(0).uniform(1, 2, shape)
    x = te.placeholder(shape, name="x")
    scheduled = check([x], topi.sum(x, axis=(0, 1)), lambda x: x.sum((0, 1)), "Window", lambda _: numbers)
    out = tvm.runtime.tensor(np.zeros(16, "float32"))
    library = tvm.compile(tvm.IRModule({"main": scheduled}), target="llvm")
    library["main"](tvm.runtime.tensor(numbers.astype("float32")), out)
    got = out.numpy()
    np.testing.assert_allclose(got, numbers.astype("float32").sum((0, 1), dtype="float64"), rtol=1.5e-6)

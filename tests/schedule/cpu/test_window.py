# SPDX-License-Identifier: Apache-2.0
"""Reductions over outer axes, and a vector times a matrix, against numpy."""

import pytest
from tvm import te, topi


@pytest.mark.parametrize("shape", [(3, 8), (49, 100), (7, 1), (5, 67)])
def test_sum_over_the_outer_axis(check, shape):
    x = te.placeholder(shape, name="x")
    check([x], topi.sum(x, axis=0), lambda x: x.sum(0), "Window" if shape[1] > 1 else "Rows")


def test_vector_times_matrix(check):
    x, w = te.placeholder((1, 40), name="x"), te.placeholder((40, 77), name="w")
    k = te.reduce_axis((0, 40), "k")
    output = te.compute((1, 77), lambda i, j: te.sum(x[i, k] * w[k, j], k))
    check([x, w], output, lambda x, w: x @ w, "Window")

# SPDX-License-Identifier: Apache-2.0
"""Reductions over outer axes, and a vector times a matrix, against numpy."""

import pytest
from tvm import te, topi


@pytest.mark.parametrize("shape", [(3, 8), (49, 100), (7, 1), (5, 67)])
def test_sum_over_the_outer_axis(check, shape):
    x = te.placeholder(shape, name="x")
    check([x], topi.sum(x, axis=0), lambda x: x.sum(0), "Window" if shape[1] > 1 else "Rows")

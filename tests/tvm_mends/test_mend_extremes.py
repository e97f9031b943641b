# SPDX-License-Identifier: Apache-2.0
"""MendExtremes: maxima and minima of infinity, and where they are."""

import numpy as np
import pytest
from tvm import relax

from helpers import legal, op, run
from smartmem_tvm.tvm_mends import MendExtremes


def mended(build, *shapes, dtype="float32"):
    return MendExtremes()(legal(build, *shapes, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("kind", "value"), [("max", -np.inf), ("min", np.inf)])
def test_rows_of_infinity(kind, value, dtype):
    x = np.full((3, 5), value, dtype)
    x[1, 2] = 4
    (got,) = run(mended(lambda x: getattr(op, kind)(x, 1), x.shape, dtype=dtype), x)
    np.testing.assert_array_equal(got, getattr(np, kind)(x, 1))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_bfloat16_does_not_begin_with_the_largest_float32(kind):
    """Which is an infinity once it is stored, but not where a kernel keeps it in wider registers."""
    mod = mended(lambda x: getattr(op, kind)(x, 1), (3, 5), dtype="bfloat16")
    assert "e+38" not in (text := mod.script()) and "3402823" not in text and "inf" in text


@pytest.mark.parametrize(("kind", "value"), [("argmax", -np.inf), ("argmin", np.inf)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
def test_places_in_rows_of_an_extreme(kind, value, dtype):
    if dtype != "float32":
        value = np.iinfo(dtype).min if kind == "argmax" else np.iinfo(dtype).max
    x = np.full((3, 5), value, dtype)
    x[1, 2] = 4
    (got,) = run(mended(lambda x: getattr(op, kind)(x, 1), x.shape, dtype=dtype), x)
    np.testing.assert_array_equal(got, getattr(np, kind)(x, 1))


def test_a_softmax_of_a_masked_row_is_no_number():
    x = np.zeros((2, 4), "float32")
    x[1] = -np.inf
    (got,) = run(mended(lambda x: op.nn.softmax(x), x.shape), x)
    np.testing.assert_array_equal(got, [[0.25] * 4, [np.nan] * 4])


def test_a_pooling_pads_with_infinity():
    x = np.full((1, 1, 4, 4), -np.inf, "float32")
    (got,) = run(mended(lambda x: op.nn.max_pool2d(x, (3, 3), padding=(1, 1)), x.shape), x)
    np.testing.assert_array_equal(got, x)


def test_the_least_number_as_a_value_stays():
    lowest = float(np.finfo("float32").min)
    mod = legal(lambda x: op.sum(op.maximum(x, op.full_like(x, relax.const(lowest, "float32"))), 1), (2, 3))
    assert MendExtremes()(mod).same_as(mod)

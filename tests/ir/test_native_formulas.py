# SPDX-License-Identifier: Apache-2.0
"""The formulas of `tables.functions` in numpy's float32, with native functions that err by as much as Vulkan allows."""

import numpy as np
import pytest

from native_numbers import EXACT, EXPONENTS, MEASURED, numbers
from smartmem_tvm.ir import native_formulas
from smartmem_tvm.tables.functions import FUNCTIONS, formula_of

SMALLEST = np.finfo("float32").tiny  # native functions may flush what is smaller


class Erring:
    """`native_formulas.Arithmetic` whose native functions err by `part` of what Vulkan allows."""

    def __init__(self, part):
        self.part = part

    def exp2(self, x):
        exact = np.exp2(x.astype("float64"))
        return self._off(exact, (3 + 2 * np.abs(x.astype("float64"))) * self._ulp(exact))

    def log2(self, x):
        exact = np.log2(x.astype("float64"))
        near = (x >= 0.5) & (x <= 2)
        return self._off(exact, np.where(near & (x != 1), 2.0**-21, 3 * self._ulp(exact)))

    def reciprocal(self, x):
        exact = 1 / x.astype("float64")
        return self._off(exact, 2.5 * self._ulp(exact))

    def magnitude(self, x):
        return np.abs(x)

    def choose(self, condition, yes, no):
        return np.where(condition, yes, no).astype("float32")

    def bound(self, value, use):
        return use(value)

    def _off(self, exact, most):
        off = np.where(np.isfinite(most), most, 0) * self.part
        found = np.where(exact == 0, exact, exact + off).astype("float32")
        return np.where(np.abs(found) < SMALLEST, np.copysign(0, exact), found).astype("float32")

    @staticmethod
    def _ulp(exact):
        with np.errstate(over="ignore"):
            return np.abs(np.spacing(exact.astype("float32"))).astype("float64")


def found_and_exact(row, x, part):
    """Return what a formula gives for float32 numbers, and the function in float64."""
    do = Erring(part)
    with np.errstate(all="ignore"):
        if row.name == "pow":
            pairs = [(native_formulas.power(x, y, do), np.power(x.astype("float64"), y)) for y in EXPONENTS]
            return tuple(np.concatenate(each) for each in zip(*pairs))
        return getattr(native_formulas, row.formula)(x, do), EXACT[row.name](x.astype("float64"))


@pytest.mark.parametrize("part", [-1, 0, 1])
@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row.name}-{row.dtype}")
def test_the_error_is_that_of_the_table(row, part):
    x = numbers(row.dtype)
    x = x[np.isfinite(x)].astype("float32")
    found, exact = found_and_exact(row, x, part)
    with np.errstate(over="ignore"):
        exact32 = exact.astype("float32")
    assert found.dtype == np.float32 and np.array_equal(np.isnan(found), np.isnan(exact))
    close = np.isfinite(exact32) & (np.abs(exact) < 0.999 * np.finfo("float32").max)
    error = np.abs(found[close].astype("float64") - exact[close])
    allowed = np.maximum(row.absolute, row.relative * np.abs(exact[close])) + 2 * SMALLEST
    assert (error <= allowed).all(), (np.resize(x, close.shape)[close][np.argmax(error / allowed)], error.max())
    far = ~close & ~np.isnan(exact)
    np.testing.assert_allclose(found[far], exact32[far], rtol=2e-3)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row.name}-{row.dtype}")
def test_infinities_and_nan(row):
    x = np.array([np.inf, np.nan] if row.name == "pow" else [np.inf, -np.inf, np.nan], "float32")
    found, exact = found_and_exact(row, x, 0)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_allclose(found, exact, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["tanh", "erf"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_zeros_keep_their_sign(name, dtype):
    found = getattr(native_formulas, formula_of(name, dtype))(np.array([0.0, -0.0], "float32"), Erring(1))
    assert not found.any() and list(np.signbit(found)) == [False, True]


def test_halves_differ_in_the_last_bit_at_most():
    """Rounded to a half, a function is the nearest half or the one beside it; but ``normal_cdf`` of small results."""
    x = numbers("float16")
    x = x[np.isfinite(x)].astype("float32")
    for row in MEASURED:
        if row.dtype != "float16" or row.name == "pow":
            continue
        for part in (-1, 1):
            found, exact = found_and_exact(row, x, part)
            with np.errstate(over="ignore"):
                a, b = found.astype("float16"), exact.astype("float16")
            both = np.isfinite(a) & np.isfinite(b)
            least = 0.02 if row.name == "normal_cdf" else 0.0
            wide = both & (np.abs(exact) >= least)
            gap = np.abs(a[wide].astype("float32") - b[wide].astype("float32"))
            assert (gap <= np.spacing(np.abs(b[wide])).astype("float32")).all(), row.name


def test_quotients_of_floats_that_are_rounded():
    rng = np.random.default_rng(1)
    a, b = (np.exp(rng.uniform(-8, 8, 100_000)).astype("float32") for _ in range(2))
    (row,) = [each for each in FUNCTIONS if (each.name, each.dtype) == ("divide", "float16")]
    for part in (-1, 1):
        exact = a.astype("float64") / b
        assert (np.abs(native_formulas.divide(a, b, Erring(part)) - exact) <= row.relative * exact).all()

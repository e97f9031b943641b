# SPDX-License-Identifier: Apache-2.0
"""Formulas of functions for GPUs whose special unit has powers of two, logarithms and reciprocals of float32.

Each takes a number and an `Arithmetic`: in TIR for `NativeFunctions`, in numpy for the tests. NaN stays NaN, infinities
and the signs of zeros are as in C, if the native functions keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

_LOG2_E, _LN_2 = 1.4426950408889634, 0.6931471805599453
_TWO_OVER_ROOT_PI = 1.1283791670955126
# log2((1 - c) / c) = z q(z^2) where c = 0.5 + 0.5 erf(z). Fitted on [0, 4] by least squares, weighted until the largest
# error of c is least (Lawson): 1.5e-6 and 2.9e-8. The last coefficient is negative, so that c is 0 and 1 far out.
_CDF_OF_HALF = (-3.255753467, -0.2970016551, 0.00143352707, 0.001197837027, -9.303699486e-05)
_CDF = (
    *(-3.255815611, -0.296518501, 0.0005320190309, 0.001805444898),
    *(-0.0002588557446, 1.727104074e-05, -4.586615243e-07),
)
# tanh(x) = x + x^3 p(x^2) for |x| < 0.625 (Cephes, tanhf).
_TANH = (-3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2, 2.06390887954e-2, -5.70498872745e-3)
_NEAR = 0.625
# Below, x is tanh(x), and 2 x / sqrt(pi) is erf(x), but for 1.4e-4 of it: a quarter of the rounding to a half.
_NEAR_OF_HALF = 0.02
# erf(x) = x p(x^2) / q(x^2) for |x| <= 4 (Eigen, and topi.fast_erf).
_ERF_ABOVE = (
    *(-1.60960333262415e-02, -2.95459980854025e-03, -7.34990630326855e-04, -5.69250639462346e-05),
    *(-2.10102402082508e-06, 2.77068142495902e-08, -2.72614225801306e-10),
)
_ERF_BELOW = (
    *(-1.42647390514189e-02, -7.37332916720468e-03, -1.68282697438203e-03, -2.13374055278905e-04),
    -1.45660718464996e-05,
)
_ERF_END = 4.0


class Arithmetic(Protocol):
    """Operations on float32 beside Python's operators."""

    def exp2(self, x: Any) -> Any:
        """``native_exp2``."""

    def log2(self, x: Any) -> Any:
        """``native_log2``."""

    def reciprocal(self, x: Any) -> Any:
        """``native_recip``."""

    def magnitude(self, x: Any) -> Any:
        """``fabs``."""

    def choose(self, condition: Any, yes: Any, no: Any) -> Any:
        """``condition ? yes : no``."""

    def bound(self, value: Any, use: Callable[[Any], Any]) -> Any:
        """``use(value)``, with the value computed once."""


def exp(x: Any, do: Arithmetic) -> Any:
    """Return the exponential."""
    return do.exp2(x * _LOG2_E)


def exp2(x: Any, do: Arithmetic) -> Any:
    """Return the power of two."""
    return do.exp2(x)


def log(x: Any, do: Arithmetic) -> Any:
    """Return the natural logarithm."""
    return do.log2(x) * _LN_2


def sigmoid(x: Any, do: Arithmetic) -> Any:
    """Return ``1 / (1 + exp(-x))``."""
    return do.reciprocal(do.exp2(x * -_LOG2_E) + 1.0)


def tanh(x: Any, do: Arithmetic) -> Any:
    """Return the hyperbolic tangent."""
    near = do.bound(x * x, lambda square: x * (square * _polynomial(square, _TANH) + 1.0))
    return _near_zero(x, _NEAR, near, _far_tanh(x, do), do)


def tanh_of_half(x: Any, do: Arithmetic) -> Any:
    """Return the hyperbolic tangent with the digits of a half."""
    return _near_zero(x, _NEAR_OF_HALF, x, _far_tanh(x, do), do)


def _far_tanh(x: Any, do: Arithmetic) -> Any:
    return do.reciprocal(do.exp2(x * (2 * _LOG2_E)) + 1.0) * -2.0 + 1.0


def erf(x: Any, do: Arithmetic) -> Any:
    """Return the error function."""

    def quotient(x):
        def of(square):
            return x * _polynomial(square, _ERF_ABOVE) * do.reciprocal(_polynomial(square, _ERF_BELOW))

        return do.bound(x * x, of)

    # Comparisons, and not a minimum and a maximum, which give the other number for NaN.
    inside = do.choose(x < -_ERF_END, -_ERF_END, do.choose(x > _ERF_END, _ERF_END, x))
    return do.bound(inside, quotient)


def erf_of_half(x: Any, do: Arithmetic) -> Any:
    """Return the error function with the digits of a half."""
    return _near_zero(x, _NEAR_OF_HALF, x * _TWO_OVER_ROOT_PI, normal_cdf_of_half(x, do) * 2.0 - 1.0, do)


def normal_cdf(x: Any, do: Arithmetic) -> Any:
    """Return ``0.5 + 0.5 erf(x)``."""
    return _cdf(x, _CDF, do)


def normal_cdf_of_half(x: Any, do: Arithmetic) -> Any:
    """Return ``0.5 + 0.5 erf(x)`` with the digits of a half."""
    return _cdf(x, _CDF_OF_HALF, do)


def _cdf(x: Any, coefficients: Sequence[float], do: Arithmetic) -> Any:
    return do.bound(x * x, lambda square: do.reciprocal(do.exp2(x * _polynomial(square, coefficients)) + 1.0))


def power(x: Any, exponent: float, do: Arithmetic) -> Any:
    """Return ``x ** exponent`` for an exponent that is no integer: NaN for negative numbers."""
    return do.exp2(do.log2(x) * exponent)


def divide(a: Any, b: Any, do: Arithmetic) -> Any:
    """Return ``a / b``; 0 where ``b`` is beyond 2^126."""
    return a * do.reciprocal(b)


def _near_zero(x: Any, end: float, near: Any, far: Any, do: Arithmetic) -> Any:
    """Return `near` for ``|x| < end``, else `far`, also for NaN."""
    return do.choose(do.magnitude(x) < end, near, far)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return a polynomial by Horner's rule; the constant coefficient is the first."""
    *others, value = (float(np.float32(each)) for each in coefficients)
    result: Any = x * value + others.pop()
    for each in reversed(others):
        result = result * x + each
    return result

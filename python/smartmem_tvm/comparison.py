# SPDX-License-Identifier: Apache-2.0
"""Compare results with a reference, and with exact numbers."""

from __future__ import annotations

from math import log10

import ml_dtypes
import numpy as np

_AS_FAR = 2.0  # ratio of our error to the reference's, up to which different rounding explains the difference
_PLAUSIBLE = 10.0  # ratio of the reference's error to that in the model's own types, up to which rounding explains it


def compare(got: np.ndarray, expected: np.ndarray, rtol: float, atol: float, reference: str = "ONNX Runtime") -> dict:
    """Return the errors of one output; the relative error is relative to the largest magnitude of `expected`.

    Both errors are infinite if shapes, dtypes, or the places of NaN and infinities differ.
    """
    facts = {"shape": list(got.shape), "dtype": str(got.dtype)}
    if got.shape != expected.shape or got.dtype != expected.dtype:
        why = f"{reference} gives {expected.dtype} {list(expected.shape)}"
        return {**facts, "ok": False, "max_abs_err": np.inf, "max_rel_err": np.inf, "reason": why}
    exact = expected.dtype.kind in "biu"
    mine, right = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(right)
    if not np.array_equal(mine[~finite], right[~finite], equal_nan=True) or not np.isfinite(mine[finite]).all():
        why = "NaN or infinity in other places"
        return {**facts, "ok": False, "max_abs_err": np.inf, "max_rel_err": np.inf, "reason": why}
    error = float(np.max(np.abs(mine[finite] - right[finite]), initial=0.0))
    largest = float(np.max(np.abs(right[finite]), initial=0.0))
    relative = error / largest if largest else (np.inf if error else 0.0)
    ok = bool(np.array_equal(got, expected)) if exact else error <= atol + rtol * largest
    return {**facts, "ok": ok, "max_abs_err": error, "max_rel_err": relative}


def judge_difference(
    errors: dict,
    got: np.ndarray,
    expected: np.ndarray,
    exact: np.ndarray,
    rough: np.ndarray,
    allowed: tuple[float, float],
    strict: bool = False,
) -> dict:
    """Decide by a third implementation whether an output or the reference is wrong, if they differ.

    The output is right if it is within the tolerance of the third implementation's numbers, in float64 or in the
    model's types (where quantized numbers are rounded as the model says); the reference does not matter then. The
    output is no worse than the reference if the reference is as far from float64, and the model itself loses as many
    digits: then the third implementation in the model's own types is as far from float64 too.

    Parameters
    ----------
    errors : dict
        The result of `compare`.
    exact, rough : numpy.ndarray
        Results of the third implementation, in float64 or in whole numbers, and in the model's types.
    allowed : tuple of float
        Relative and absolute tolerance.
    strict : bool
        Whether an output that is only no worse than the reference fails.

    Returns
    -------
    dict
        `errors`; if the output is right, or no worse, also ``ok``, a ``reason``, and ``exact``: the errors of the
        ``output`` and of the ``reference``, relative to the largest exact number, and ``digits_lost``.
    """
    if errors["ok"] or not got.shape == expected.shape == exact.shape == rough.shape or got.dtype != expected.dtype:
        return errors
    mine, theirs, own = (_away(each, exact) for each in (got, expected, rough))
    largest = float(np.max(np.abs(exact.astype(np.float64)), initial=0.0))
    rtol, atol = (0.0, 0.0) if exact.dtype.kind in "biu" else allowed
    right = min(mine, _away(got, rough)) <= rtol + (atol / largest if largest else 0.0)
    rounds = got.dtype.kind not in "biu" or got.dtype.itemsize == 1  # bytes are quantized numbers, others indices
    alike = rounds and np.isfinite(theirs) and mine <= _AS_FAR * theirs and theirs <= _PLAUSIBLE * own
    if not right and (strict or not alike):
        return errors
    digits, lost = _digits(got.dtype), 0.0
    if digits and mine:
        lost = min(max(digits + log10(mine), 0.0), digits)
    far = f"{mine:.1e} from the exact numbers, ONNX Runtime {theirs:.1e}"
    word = "right" if right else "no worse"
    reason = f"{word}: {far}" + (f"; {lost:.1f} of {digits:.1f} digits lost" if digits else "")
    facts = {"output": mine, "reference": theirs, "digits_lost": round(lost, 1)}
    return {**errors, "ok": True, "reason": reason, "exact": facts}


def _away(array: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest error, relative to the largest magnitude of `exact`."""
    return compare(array.astype(np.float64), exact.astype(np.float64), 0.0, 0.0)["max_rel_err"]


def _digits(dtype: np.dtype) -> float:
    """Return the decimal digits of a floating type; 0 for other types."""
    if dtype.kind in "biu":
        return 0.0
    return -log10(float(ml_dtypes.finfo(dtype).eps) / 2)

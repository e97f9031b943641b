# SPDX-License-Identifier: Apache-2.0
"""How far results are off."""

from __future__ import annotations

import numpy as np


def compare(got: np.ndarray, expected: np.ndarray, rtol: float, atol: float, reference: str = "ONNX Runtime") -> dict:
    """Errors of one output; the relative one is relative to the largest magnitude of `expected`.

    Both are infinite where shapes, dtypes, or the places of NaN and infinities differ.
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

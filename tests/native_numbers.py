# SPDX-License-Identifier: Apache-2.0
"""Numbers for the functions of `tables.functions`, and what they are in float64."""

import math

import numpy as np
from tvm import tirx

from smartmem_tvm.tables.functions import FUNCTIONS, LIBRARY

MEASURED = [each for each in FUNCTIONS if each.formula != LIBRARY and each.name != "divide"]
EXPONENTS = (0.7, -0.5, 1.5, 2.4)
EXACT = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
    "erf": np.vectorize(math.erf, otypes=["float64"]),
    "normal_cdf": np.vectorize(lambda x: 0.5 * math.erfc(-x), otypes=["float64"]),
}


def numbers(dtype: str) -> np.ndarray:
    """Return all finite halves, or floats with every exponent and random digits, and dense ones near zero."""
    if dtype == "float16":
        return np.arange(1 << 16, dtype="uint16").view("float16")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype="uint64").astype("uint32").view("float32")
    drawn = [rng.uniform(-size, size, 50_000).astype("float32") for size in (0.1, 1, 6, 90)]
    return np.concatenate([bits[np.isfinite(bits)], *drawn])


def cdf(x):
    half = tirx.const(0.5, x.ty.dtype)
    return tirx.erf(x) * half + half


def function(row):
    """Return a row's function in TE."""
    if row.name == "normal_cdf":
        return cdf
    if row.name == "pow":
        return lambda x: tirx.power(x, tirx.const(EXPONENTS[0], x.ty.dtype))
    return getattr(tirx, row.name)

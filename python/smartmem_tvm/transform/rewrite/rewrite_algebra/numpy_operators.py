# SPDX-License-Identifier: Apache-2.0
"""The operators of the rewrite rules over constants."""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMPY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "left_shift": np.left_shift,
    "negative": np.negative,
    "abs": np.abs,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "nn.relu": lambda x: np.maximum(x, 0),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "matmul": np.matmul,
}
_NUMPY_REDUCE = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min}


def evaluate(op: str, operands: list[np.ndarray], attrs: Any, dtype: str) -> np.ndarray:
    """Return the value of one operator over constants; `attrs` is the `terms.Reduce` of a reduction."""
    with np.errstate(all="ignore"):
        if op in _NUMPY_REDUCE:
            result = _NUMPY_REDUCE[op](operands[0], axis=attrs.axes, keepdims=attrs.keepdims)
        else:
            result = _NUMPY[op](*operands)
    return np.asarray(result).astype(dtype)

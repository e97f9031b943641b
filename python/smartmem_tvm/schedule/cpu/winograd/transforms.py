# SPDX-License-Identifier: Apache-2.0
"""Winograd's transforms F(m x m, 3 x 3): m x m results of a 3 x 3 window from (m + 2)^2 products instead of 9 m^2.

    Y = A' [ (G g G') * (B' d B) ] A          g: window   d: tile of m + 2 lines and columns   Y: m x m results

A. Lavin, S. Gray: Fast Algorithms for Convolutional Neural Networks, 2015, section 4. The matrices are those of Toom
and Cook: polynomials evaluated at m + 1 points and at infinity. The points decide how much an error grows; pairs of
opposite points share their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.polynomial.polynomial import polyfromroots

WINDOW = 3  # rows, and columns, of a window: by definition of F(m x m, 3 x 3)
# m -> points. For m = 4 the roots of 1/2 and 2 have a quarter of the error of 1 and 2, as their powers stay closer
# together (measured on random numbers: 2.5e-6 and 9.4e-6 of the largest result with 256 channels).
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))}
RESULTS = tuple(_POINTS)
_SAMPLES = 16  # number of tiles, and largest number of filters, that `error_of` draws. Chosen: it takes little time


@dataclass(frozen=True, eq=False)
class Transforms:
    """The three matrices of one m, in float64.

    Attributes
    ----------
    data, window, result : numpy.ndarray
        ``B'`` (m + 2, m + 2), ``G`` (m + 2, 3) and ``A'`` (m, m + 2).
    """

    data: np.ndarray
    window: np.ndarray
    result: np.ndarray

    def of_windows(self, windows: np.ndarray) -> np.ndarray:
        """Return ``G g G'`` of windows (filters, channels, 3, 3), as ((m + 2)^2, filters, channels), in float64."""
        flat = windows.reshape(-1, WINDOW**2).astype("float64")
        return (np.kron(self.window, self.window) @ flat.T).reshape(-1, *windows.shape[:2])


@cache
def transforms(m: int) -> Transforms:
    """Return the matrices for m x m results; `RESULTS` are the values of m."""
    points, size = _POINTS[m], m + WINDOW - 1
    data, window, result = np.zeros((size, size)), np.zeros((size, WINDOW)), np.zeros((m, size))
    for row, point in enumerate(points):
        others = [each for each in points if each != point]
        data[row, : size - 1] = polyfromroots(others)
        window[row] = point ** np.arange(WINDOW) / np.prod([point - each for each in others])
        result[:, row] = point ** np.arange(m)
    data[-1], window[-1, -1], result[-1, -1] = polyfromroots(points), 1, 1
    return Transforms(*(np.where(abs(each) < 1e-12, 0, each) for each in (data, window, result)))


def error_of(m: int, windows: np.ndarray) -> float:
    """Return the largest error of float32 arithmetic on random tiles, as a fraction of the largest result.

    Parameters
    ----------
    windows : numpy.ndarray
        (filters, channels, 3, 3).
    """
    found, size = transforms(m), m + WINDOW - 1
    windows = windows[:: -(-len(windows) // _SAMPLES)]
    draw = np.random.default_rng(0)
    tiles = draw.standard_normal((windows.shape[1], _SAMPLES, size, size)).astype("float32")
    # Half of the tiles look like the results of a ReLU, whose mean is not zero.
    tiles[:, ::2] = np.maximum(tiles[:, ::2], 0)
    exact = _products(found, found.of_windows(windows), tiles.astype("float64"), "float64")
    rough = _products(found, found.of_windows(windows).astype("float32"), tiles, "float32")
    largest = np.abs(exact).max()
    return float(np.abs(rough - exact).max() / largest) if largest else 0.0


def _products(found: Transforms, windows: np.ndarray, tiles: np.ndarray, dtype: str) -> np.ndarray:
    data, result = found.data.astype(dtype), found.result.astype(dtype)
    spectra = (data @ tiles @ data.T).reshape(*tiles.shape[:2], -1)
    sums = windows @ spectra.transpose(2, 0, 1)
    size = len(data)
    whole = sums.transpose(1, 2, 0).reshape(-1, _SAMPLES, size, size)
    return result @ whole @ result.T


def by_rows(matrix: np.ndarray, values: Sequence) -> list:
    """Return ``matrix @ values`` as expressions; two rows that differ only in signs share their sums."""
    done: dict[int, object] = {}
    for row, weights in enumerate(matrix):
        if row in done:
            continue
        other = next((n for n in range(row + 1, len(matrix)) if _alike(weights, matrix[n])), None)
        if other is None:
            done[row] = _sum(weights, values)
            continue
        same = matrix[other] == weights
        even, odd = _sum(np.where(same, weights, 0), values), _sum(np.where(same, 0, weights), values)
        done[row], done[other] = even + odd, even - odd
    return [done[row] for row in range(len(matrix))]


def by_columns(matrix: np.ndarray, values: Sequence) -> list:
    """Return ``matrix @ values`` as expressions; two columns that differ only in signs share sum and difference."""
    matrix, values = matrix.copy(), list(values)
    for column in range(matrix.shape[1]):
        pairs = range(column + 1, matrix.shape[1])
        other = next((n for n in pairs if _alike(matrix[:, column], matrix[:, n])), None)
        if other is None:
            continue
        same = matrix[:, column] == matrix[:, other]
        values[column], values[other] = values[column] + values[other], values[column] - values[other]
        matrix[:, other] = np.where(same, 0, matrix[:, column])
        matrix[:, column] = np.where(same, matrix[:, column], 0)
    return [_sum(weights, values) for weights in matrix]


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((np.abs(a) == np.abs(b)).all() and (a != b).any() and (a == b).any())


def _sum(weights: np.ndarray, values: Sequence):
    """Return the sum of weighted values; those of weight 1 and -1, which need no multiplication, come first."""
    total = None
    terms = [(weight, value) for weight, value in zip(weights, values) if weight]
    for weight, value in sorted(terms, key=lambda term: (term[0] != 1, term[0] != -1)):
        if total is None:
            total = value if weight == 1 else value * weight
        elif abs(weight) == 1:
            total = total + value if weight == 1 else total - value
        else:
            total = total + value * weight
    return total

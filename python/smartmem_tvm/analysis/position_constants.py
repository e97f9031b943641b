# SPDX-License-Identifier: Apache-2.0
"""Constants of a model that hold one number, which follows from the length: ``n``, ``1 / n``, roots, ``n - 1``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..ir.mask_positions import PLAIN, RECIPROCAL, RECIPROCAL_ROOT, ROOT, Counted, Extent

_ROUNDINGS = (
    4  # units in the last place by which a constant may differ from its formula: chosen, one for each operation
)


def counted_of(
    one: np.ndarray, other: np.ndarray, lengths: tuple[int, int], numbers: Sequence[Extent]
) -> Counted | None:
    """Return how a constant of one number follows from the length; None if that is not known.

    Parameters
    ----------
    one, other : numpy.ndarray
        The constant at both lengths.
    numbers : sequence of Extent
        Numbers of positions that it may follow from.
    """
    if not is_one_number(one, other):
        return None
    values = [float(each.reshape(-1)[0]) for each in (one, other)]
    exact = one.dtype.kind in "iu"
    for number, function in itertools.product(
        numbers, (PLAIN,) if exact else (PLAIN, RECIPROCAL, ROOT, RECIPROCAL_ROOT)
    ):
        plain = [Counted(number, function).of(length) for length in lengths if number.of(length) > 0]
        if len(plain) == 2 and plain[0] != plain[1]:
            found = Counted(number, function, _rounded(values[0] / plain[0]))
            if all(is_number(found, *pair, one.dtype) for pair in zip(lengths, values, strict=True)):
                return found
    for number in numbers:
        counts = [number.of(length) for length in lengths]
        slope = (values[1] - values[0]) / (counts[1] - counts[0]) if counts[0] != counts[1] else 0.5
        found = Counted(number, PLAIN, slope, values[0] - slope * counts[0])
        if all(each.is_integer() for each in found[2:]):
            return found
    return None


def is_one_number(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether a constant holds one number at each of two lengths, once or several times."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.dtype.kind in "iuf"
        and one.size > 0
        and all((each == each.reshape(-1)[0]).all() for each in (one, other))
    )


def is_number(counted: Counted, length: int, value: float, dtype: np.dtype) -> bool:
    """Whether a constant for a length is what the formula says, up to the rounding of its type."""
    wanted = counted.of(length)
    if dtype.kind in "iu":
        return wanted == value
    return abs(wanted - value) <= _ROUNDINGS * float(np.finfo(dtype).eps) * abs(wanted)


def _rounded(factor: float) -> float:
    """Return a factor, an integer where it is one up to the rounding of a constant."""
    near = round(factor)
    return float(near) if near and abs(factor - near) < 1e-6 * abs(near) else factor

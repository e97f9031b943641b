# SPDX-License-Identifier: Apache-2.0
"""Modelled prices of candidates beside measured times: which candidates to measure first, and how the order changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from .strategy import seconds_of
from .trace import genome_of

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms


@dataclass(frozen=True)
class OrderChange:
    """Candidates of a kernel that were modelled and then measured.

    Attributes
    ----------
    compared : int
        Number of candidates with both.
    correlation : float or None
        Spearman's rank correlation of the modelled and the measured order: 1 if they are the same, -1 if one is the
        other's reverse; None of fewer than two candidates, or if all of them are alike.
    best_is : int
        Place of the modelled best in the measured order, from 1.
    """

    compared: int
    correlation: float | None
    best_is: int

    def as_dict(self) -> dict:
        """Plain data for JSON."""
        return asdict(self)


class Modelled:
    """The prices that models gave to the candidates of a file's kernels.

    Parameters
    ----------
    records : mapping
        Key of a workload -> key of a candidate -> its record, with its price as seconds.
    """

    def __init__(self, records: Mapping[str, Mapping[str, ms.database.TuningRecord]]):
        self._records = {
            workload: {key: each for key, each in found.items() if seconds_of(each) is not None}
            for workload, found in records.items()
        }

    def best(
        self, workload: str, count: int, ours: bool, without: Collection[str] = ()
    ) -> list[ms.database.TuningRecord]:
        """Return the candidates of a kernel with the lowest prices, the lowest first.

        Parameters
        ----------
        count : int
            Most of them.
        ours : bool
            Whether to return decisions of our rules, or schedules of TVM's.
        without : collection of str
            Keys of candidates to leave out.
        """
        found = self._records.get(workload, {})
        left = [
            each for key, each in found.items() if key not in without and (genome_of(each.trace) is not None) == ours
        ]
        return sorted(left, key=seconds_of)[:count]

    def change(self, workload: str, measured: Mapping[str, float]) -> OrderChange | None:
        """Return how the order changed from prices to times; None if no candidate has both.

        Parameters
        ----------
        measured : mapping
            Key of a candidate -> its seconds.
        """
        prices = self._records.get(workload, {})
        both = [(seconds_of(prices[key]), seconds) for key, seconds in measured.items() if key in prices]
        if not both:
            return None
        best = min(both)[1]
        return OrderChange(len(both), rank_correlation(both), 1 + sum(seconds < best for _, seconds in both))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation of pairs of numbers; equal numbers share the mean of their ranks."""
    one, other = (_ranks(np.array(column)) for column in zip(*pairs))
    if one.std() == 0 or other.std() == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(numbers: np.ndarray) -> np.ndarray:
    below, upto = (np.searchsorted(np.sort(numbers), numbers, side) for side in ("left", "right"))
    return (below + upto - 1) / 2

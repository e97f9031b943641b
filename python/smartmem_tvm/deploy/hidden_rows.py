# SPDX-License-Identifier: Apache-2.0
"""Whether a model hides the rows of its caches behind a token, so that padding and old rows may lie there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .caches import HeldCaches
from .token_inputs import Step

# What two runs may differ by, relative to the largest number: rounding, as a hidden row has the weight 0. Assumed.
_NEAR = 1e-4


class HiddenRows:
    """Tests the functions of a model, and keeps the rows behind a sequence as a function needs them.

    A function is tested once for all sessions of a model, when rows behind the tokens hold something for the first
    time, and when tokens are padded for the first time: it runs again with other padding, and other numbers in these
    rows. If scores or rows of tokens differ, the model sees them. Then no tokens are padded, or rows behind a sequence
    are zeros before each run, as in a new cache.

    Parameters
    ----------
    held : HeldCaches
    run : callable
        Runs a step and returns scores, sequences x tokens x vocabulary.
    """

    def __init__(self, held: HeldCaches, run: Callable[[Step], np.ndarray]):
        self._held, self._run = held, run
        self._random = np.random.default_rng(0)
        self._used: list[int] = []  # for each sequence, the rows that were written since they were zeros

    def may_pad(self, function: str) -> bool:
        """Whether tokens may be padded for a function, as far as is known."""
        hides = self._held.plan.hides
        return hides.get((function, True), hides.get((function, False), True))

    def prepare(self, step: Step) -> None:
        """Clear rows before a run of a function that sees them."""
        self._used = self._used or [0] * len(step.first)
        hides = self._held.plan.hides.get((step.function, False), True)
        if not hides and any(used > first for used, first in zip(self._used, step.first, strict=True)):
            self._clear(step)

    def seen(self, step: Step, scores: np.ndarray) -> bool:
        """Whether what a run gave depends on what is behind the tokens; then rows behind those before it are cleared.

        Parameters
        ----------
        scores : np.ndarray
            Of the run, sequences x tokens x vocabulary.
        """
        ends = [each + step.size for each in step.first]
        behind = step.padded or any(map(int.__gt__, self._used, ends))
        self._used = list(map(max, self._used, ends))
        if not behind or (step.function, step.padded) in self._held.plan.hides:
            return False
        if step.padded and scores.shape[1] != step.size:
            return False  # the scores of the tokens are not known, and the run is repeated without padding
        hides = self._is_same_with_noise(step, scores)
        self._held.plan.hides[step.function, step.padded] = hides
        if not hides:
            self._clear(step)
        return not hides

    def _clear(self, step: Step) -> None:
        """Put zeros behind the sequences as they were before a step."""
        self._fill(step.first, np.zeros)
        self._used = list(step.first)

    def _is_same_with_noise(self, step: Step, scores: np.ndarray) -> bool:
        ends = [first + count for first, count in zip(step.first, step.counts, strict=True)]
        before = self._contents()
        self._fill(ends, self._random.standard_normal)
        ids = np.where(np.arange(step.size) < np.array(step.counts)[:, None], step.ids, 1)
        other = self._run(replace(step, ids=ids))
        after = self._contents()
        for name, array in before.items():
            self._held.put(name, array)
        columns = [slice(0, each) if step.padded else slice(None) for each in step.counts]
        pairs = [(scores[at][columns[at]], other[at][columns[at]]) for at in np.flatnonzero(step.counts)]
        pairs += [pair for name in before for pair in self._rows(name, before[name], after[name], ends)]
        return all(_near(*pair) for pair in pairs)

    def _contents(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self._held.tensors.items()}

    def _rows(self, name: str, one: np.ndarray, other: np.ndarray, ends: Sequence[int]) -> list[tuple]:
        """Return the rows of tokens of two states of a cache."""
        lines = self._lines(name, ends)
        return [(np.moveaxis(one[at], axis, 0)[:end], np.moveaxis(other[at], axis, 0)[:end]) for at, axis, end in lines]

    def _fill(self, ends: Sequence[int], numbers: Callable[[tuple[int, ...]], np.ndarray]) -> None:
        """Write numbers into all rows behind sequences."""
        for name, array in self._contents().items():
            filled = array.copy()
            for at, axis, end in self._lines(name, ends):
                behind = np.moveaxis(filled[at], axis, 0)[end:]
                behind[...] = numbers(behind.shape).astype(array.dtype)
            self._held.put(name, filled)

    def _lines(self, name: str, ends: Sequence[int]) -> list[tuple]:
        """Return (index of a sequence in a cache, its dimension of rows then, rows of its tokens)."""
        axis = self._held.plan.axes[name]
        shape = self._held.plan.tensors[name].shape
        if axis and shape[0] == len(ends):
            return [(at, axis - 1, end) for at, end in enumerate(ends)]
        return [(..., axis, max(ends))]


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    most = float(np.abs(one.astype("float64")).max(initial=0.0))
    return bool(np.allclose(other, one, rtol=0.0, atol=_NEAR * most, equal_nan=True))

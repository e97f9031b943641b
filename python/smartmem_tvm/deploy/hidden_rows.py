# SPDX-License-Identifier: Apache-2.0
"""Whether a model hides the rows of its caches behind a token, so that padding and old rows may lie there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .caches import HeldCaches
from .token_inputs import Step, Written

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
    sequences : sequence of Written
        Whose `used` rows are kept here.
    run : callable
        Runs a step and returns scores, sequences x tokens x vocabulary.
    """

    def __init__(self, held: HeldCaches, sequences: Sequence[Written], run: Callable[[Step], np.ndarray]):
        self._held, self._sequences, self._run = held, sequences, run
        self._random = np.random.default_rng(0)
        self._capacity = max(each.shape[held.plan.axes[name]] for name, each in held.plan.tensors.items())

    def may_pad(self, function: str) -> bool:
        """Whether tokens may be padded for a function, as far as is known."""
        hides = self._held.plan.hides
        return hides.get((function, True), hides.get((function, False), True))

    def prepare(self, step: Step) -> None:
        """Clear rows before a run of a function that sees them."""
        hides = self._held.plan.hides.get((step.function, False), True)
        if not hides and any(each.used > first for each, first in zip(self._sequences, step.first, strict=True)):
            self._clear(step)

    def seen(self, step: Step, scores: np.ndarray) -> bool:
        """Whether what a run gave depends on what is behind the tokens; then rows behind those before it are cleared.

        Parameters
        ----------
        scores : np.ndarray
            Of the run, sequences x tokens x vocabulary.
        """
        behind = step.padded
        for each, first in zip(self._sequences, step.first, strict=True):
            behind |= each.used > first + step.size
            each.used = min(max(each.used, first + step.size), self._capacity)  # circular caches have no more
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
        for each, first in zip(self._sequences, step.first, strict=True):
            each.used = first

    def _is_same_with_noise(self, step: Step, scores: np.ndarray) -> bool:
        """Whether a run gives the same with other numbers behind the tokens, where they are left.

        Rows of the run are kept for it, and no copy of a whole cache: a test takes little memory.
        """
        ends = [first + count for first, count in zip(step.first, step.counts, strict=True)]
        before = self._rows(step)
        self._fill(ends, self._random.standard_normal)
        ids = np.where(np.arange(step.size) < np.array(step.counts)[:, None], step.ids, 1)
        other = self._run(replace(step, ids=ids))
        after = self._rows(step)
        self._put_back(step, before)
        for each in self._sequences:
            each.used = self._capacity  # the other numbers are still there
        columns = [slice(0, each) if step.padded else slice(None) for each in step.counts]
        pairs = [(scores[at][columns[at]], other[at][columns[at]]) for at in np.flatnonzero(step.counts)]
        for name, rows in before.items():
            counts = [end - first for (_, _, first), (_, _, end) in self._lines(name, step.first, ends)]
            pairs += [(one[:each], two[:each]) for one, two, each in zip(rows, after[name], counts, strict=True)]
        return all(_near(*pair) for pair in pairs)

    def _rows(self, step: Step) -> dict[str, list[np.ndarray]]:
        """Return the rows that a step writes, with its padding, of the lines of each cache."""
        return {
            name: [each.copy() for each in self._of_step(name, tensor.numpy(), step)]
            for name, tensor in self._held.tensors.items()
        }

    def _put_back(self, step: Step, rows: dict[str, list[np.ndarray]]) -> None:
        for name, tensor in self._held.tensors.items():
            array = tensor.numpy()
            for there, kept in zip(self._of_step(name, array, step), rows[name], strict=True):
                there[...] = kept
            self._held.put(name, array)

    def _of_step(self, name: str, array: np.ndarray, step: Step) -> list[np.ndarray]:
        """Return views of the rows that a step writes."""
        lines = self._lines(name, step.first)
        return [np.moveaxis(array[at], axis, 0)[first : first + step.size] for ((at, axis, first),) in lines]

    def _fill(self, ends: Sequence[int], numbers: Callable[[tuple[int, ...]], np.ndarray]) -> None:
        """Write numbers into all rows behind sequences."""
        for name, tensor in self._held.tensors.items():
            array = tensor.numpy()
            for ((at, axis, end),) in self._lines(name, ends):
                behind = np.moveaxis(array[at], axis, 0)[end:]
                behind[...] = numbers(behind.shape).astype(array.dtype)
            self._held.put(name, array)

    def _lines(self, name: str, *places: Sequence[int]) -> list[tuple]:
        """Return of each line of a cache: (its index, its dimension of rows, a row) for each list of rows.

        Each sequence has a line of its own, or all have one, with the last of their rows.
        """
        axis = self._held.plan.axes[name]
        shape = self._held.plan.tensors[name].shape
        if axis and shape[0] == len(places[0]):
            return [tuple((at, axis - 1, each[at]) for each in places) for at in range(shape[0])]
        return [tuple((..., axis, max(each)) for each in places)]


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    most = float(np.abs(one.astype("float64")).max(initial=0.0))
    return bool(np.allclose(other, one, rtol=0.0, atol=_NEAR * most, equal_nan=True))

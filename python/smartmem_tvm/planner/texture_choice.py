# SPDX-License-Identifier: Apache-2.0
"""Choose how a tensor is stored, in a buffer or a texture, and in which order, by the times of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


def _unknown() -> None:
    return None


@dataclass(frozen=True)
class PlacementTrial:
    """The result of scheduling a kernel with some placement of its tensors.

    Attributes
    ----------
    problem : str or None
        The reason why it cannot be scheduled with its textures; None if it can.
    measured : float or None
        Measured seconds of one launch, None if unknown.
    singly : frozenset of int
        Positions of the inputs in textures of which some read uses only one of four numbers.
    estimate : callable
        Computes `modelled`. This takes as long as scheduling the kernel, and is not called if a neighbour cannot have
        the texture.
    """

    problem: str | None = None
    measured: float | None = None
    singly: frozenset[int] = frozenset()
    estimate: Callable[[], float | None] = field(default=_unknown, compare=False, repr=False)

    @cached_property
    def modelled(self) -> float | None:
        """Seconds of one launch by a model of the device, None if there is no model."""
        return self.estimate()


Accepts = Callable[..., PlacementTrial]
"""Schedules a kernel (a PrimFunc) with the textures that it reads and writes, and returns the trial."""


class Slower(str):
    """The reason why a tensor should stay as it is; it holds for the present placement of its neighbours."""


def slower(
    before: Mapping[str, PlacementTrial],
    after: Mapping[str, PlacementTrial],
    words: tuple[str, str] = ("in a buffer", "in a texture"),
) -> Slower | None:
    """Return the reason why a tensor should stay as it is, None if the new placement is faster.

    Parameters
    ----------
    before, after : mapping
        Trials by name of kernel, for all kernels that write or read the tensor, the same kernels in both.
    words : tuple of str
        Words for the two placements.

    Returns
    -------
    Slower or None
        Both sums, and the kernel that loses most. Measured times are used if all are known, otherwise modelled times:
        the two kinds do not compare. If a modelled time is missing, the result is None. Kernels are modelled only until
        their sum exceeds the sum before.
    """
    for how in ("measured", "modelled"):
        was = {name: getattr(before[name], how) for name in after}
        if None not in was.values():
            now = _until(sum(was.values()), how, after)
            if None not in now.values():
                return _compared(how, was, now, len(now) < len(after), words)
    return None


def _until(most: float, how: str, trials: Mapping[str, PlacementTrial]) -> dict[str, float | None]:
    """Return the known times, and as many others as it takes for the sum to exceed `most`."""
    found = {name: getattr(trial, how) for name, trial in trials.items() if how in vars(trial)}
    for name in (each for each in trials if each not in found):
        if None in found.values() or sum(found.values()) > most:
            break
        found[name] = getattr(trials[name], how)
    return {name: found[name] for name in trials if name in found}


def _compared(
    how: str, was: Mapping[str, float], now: Mapping[str, float], more: bool, words: tuple[str, str]
) -> Slower | None:
    before, after = sum(was.values()), sum(now.values())
    if after < before:
        return None
    name = max(now, key=lambda each: now[each] - was[each])
    loser = f"{name} takes {_us(now[name])} instead of {_us(was[name])}"
    at_least = "at least " if more else ""
    return Slower(f"{how} {at_least}{_us(after)} {words[1]}, {_us(before)} {words[0]}: {loser}")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"

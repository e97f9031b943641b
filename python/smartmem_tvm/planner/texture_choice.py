# SPDX-License-Identifier: Apache-2.0
"""How a tensor is stored, in a buffer or a texture, in this order or that: the times of its kernels decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


def _unknown() -> None:
    return None


@dataclass(frozen=True)
class PlacementTrial:
    """What came of scheduling a kernel.

    Attributes
    ----------
    problem : str or None
        Why it cannot be scheduled with the textures that it reads and writes; None if it can.
    measured : float or None
        Seconds of one launch of it, None where they are not known.
    singly : frozenset of int
        Positions of the inputs that are textures and of which a read takes one number of the four that it gets.
    estimate : callable
        Works out `modelled`. That takes as long as scheduling the kernel, and is not asked for where a neighbour cannot
        have the texture.
    """

    problem: str | None = None
    measured: float | None = None
    singly: frozenset[int] = frozenset()
    estimate: Callable[[], float | None] = field(default=_unknown, compare=False, repr=False)

    @cached_property
    def modelled(self) -> float | None:
        """Seconds of one launch by a model of the device, None where there is none."""
        return self.estimate()


Accepts = Callable[..., PlacementTrial]
"""Schedules a kernel, a PrimFunc, with the textures that it reads and writes, and says how long it takes."""


class Slower(str):
    """That a tensor is better left as it is, and why: so far, for its neighbours may move."""


def slower(
    before: Mapping[str, PlacementTrial],
    after: Mapping[str, PlacementTrial],
    words: tuple[str, str] = ("in a buffer", "in a texture"),
) -> Slower | None:
    """Why a tensor is better left as it is, None if it is not.

    Parameters
    ----------
    before, after : mapping
        Kernels by name, the same ones in both: everybody who writes or reads the tensor.
    words : tuple of str
        How it is stored in both.

    Returns
    -------
    Slower or None
        Both sums and the kernel that loses most. Measured times count if there are all of them, otherwise modelled
        ones, for the two do not compare; where one of these is missing, what is possible is done. Kernels are modelled
        until those so far take longer than all did before.
    """
    for how in ("measured", "modelled"):
        was = {name: getattr(before[name], how) for name in after}
        if None not in was.values():
            now = _until(sum(was.values()), how, after)
            if None not in now.values():
                return _compared(how, was, now, len(now) < len(after), words)
    return None


def _until(most: float, how: str, trials: Mapping[str, PlacementTrial]) -> dict[str, float | None]:
    """The times that are known, and of others as many as take longer than `most` together with them."""
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

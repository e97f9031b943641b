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
        ones, for the two do not compare; where one of these is missing, what is possible is done.
    """
    for how in ("measured", "modelled"):
        times = {name: (getattr(before[name], how), getattr(after[name], how)) for name in after}
        if not any(None in pair for pair in times.values()):
            return _compared(how, times, words)
    return None


def _compared(how: str, times: Mapping[str, tuple[float, float]], words: tuple[str, str]) -> Slower | None:
    before, after = (sum(pair[side] for pair in times.values()) for side in (0, 1))
    if after < before:
        return None
    name = max(times, key=lambda each: times[each][1] - times[each][0])
    was, now = times[name]
    loser = f"{name} takes {_us(now)} instead of {_us(was)}"
    return Slower(f"{how} {_us(after)} {words[1]}, {_us(before)} {words[0]}: {loser}")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"

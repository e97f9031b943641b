# SPDX-License-Identifier: Apache-2.0
"""A compiled graph that takes shorter lengths than its tensors have: which ones, and where the results end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import json_data

# Lengths, a capacity to the shortest one that asks for it. Chosen: arenas stay small, and kernels that write zeros
# behind the length do so up to the capacity.
_LARGEST = 4
_LEAST = 16  # positions. Chosen: a vector of AVX-512, in which keys of attention end
_MOST = 4096  # positions. Chosen: the largest power of two of `frontend.open_length`
_PLACE = {"axis": json_data.is_size, "each": json_data.is_count, "more?": int, "step?": json_data.is_count}
FACTS = {
    "number": json_data.is_size,
    "capacity": json_data.is_count,
    "serves": [json_data.is_count],
    "shapes": [[json_data.is_size]],
    "outputs": [[_PLACE]],
}
"""What `AtCapacity.facts` are, as of `json_data.fits`."""


def capacities_of(length: int) -> list[int]:
    """Return the capacities to try for a length, powers of two, the largest first."""
    powers = [1 << each for each in range(_MOST.bit_length())]
    return [each for each in reversed(powers) if length <= each <= _LARGEST * length and _LEAST <= each <= _MOST]


@dataclass(frozen=True)
class AtCapacity:
    """A capacity.

    Attributes
    ----------
    number : int
        The position of the length among the graph's inputs.
    capacity : int
    serves : sequence of int
        The lengths that run at it.
    shapes : sequence
        Of the inputs that are tensors, at the capacity.
    outputs : sequence
        For each result, where positions lie in it, as `analysis.items.Share.facts` says it.
    """

    number: int
    capacity: int
    serves: Sequence[int]
    shapes: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[Mapping[str, int]]]

    def facts(self) -> dict[str, Any]:
        """Return what JSON keeps of it."""
        return asdict(self)

    def ends(self, output: int, length: int) -> list[tuple[int, int]]:
        """Return each axis of a result along which positions lie, and its elements for a length."""
        return [
            (each["axis"], each["each"] * ((length + each.get("more", 0)) // each.get("step", 1)))
            for each in self.outputs[output]
        ]

# SPDX-License-Identifier: Apache-2.0
"""Detect changes of weights that were compiled in."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Snapshot:
    """A record of tensors that detects later changes by one cheap check of each.

    torch counts the writes into a tensor (``_version``), but not those through an alias that it does not track:
    ``tensor.data`` or an array of numpy. One number of each tensor on a CPU is therefore compared, too: writes through
    an alias nearly always change whole tensors, and many of them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._seen = [(weakref.ref(each), each._version, each.data_ptr()) for each in tensors]
        self._middles = [_middle(each) for each in tensors if _is_sampled(each)]  # these views keep the memory alive
        places = [(ctypes.c_char * each.element_size()).from_address(each.data_ptr()) for each in self._middles]
        self._samples = [(place, place.raw) for place in places]

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same tensors at the same addresses, without a detected write."""
        for each, (seen, version, address) in zip(tensors, self._seen, strict=True):
            if seen() is not each or each._version != version or each.data_ptr() != address:
                return False
        return all(place.raw == before for place, before in self._samples)

    def equals(self, other: Snapshot) -> bool:
        """Whether two records are of the same tensors in the same state."""
        same = len(self._seen) == len(other._seen) and all(
            one[0]() is another[0]() and one[1:] == another[1:] for one, another in zip(self._seen, other._seen)
        )
        return same and [before for _, before in self._samples] == [before for _, before in other._samples]


def _is_sampled(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() > 0


def _middle(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of one number in the middle."""
    found = tensor.detach()
    while found.dim():
        found = found[found.shape[0] // 2]
    return found

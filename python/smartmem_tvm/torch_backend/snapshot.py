# SPDX-License-Identifier: Apache-2.0
"""Whether weights are still those that were compiled in."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Snapshot:
    """What is remembered of tensors to tell whether they have changed, at the cost of a look at each.

    torch counts the writes into a tensor (``_version``). It does not count those through another tensor of the same
    memory that it does not know to be one: ``tensor.data``, an array of numpy. Of each tensor on a CPU one number is
    therefore compared too: such writes are nearly always of whole tensors, and of many.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._seen = [(weakref.ref(each), each._version, each.data_ptr()) for each in tensors]
        self._middles = [_middle(each) for each in tensors if _is_sampled(each)]  # they keep the memory
        places = [(ctypes.c_char * each.element_size()).from_address(each.data_ptr()) for each in self._middles]
        self._samples = [(place, place.raw) for place in places]

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same tensors, in the same place, with the same numbers as far as is known."""
        for each, (seen, version, address) in zip(tensors, self._seen, strict=True):
            if seen() is not each or each._version != version or each.data_ptr() != address:
                return False
        return all(place.raw == before for place, before in self._samples)


def _is_sampled(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() > 0


def _middle(tensor: torch.Tensor) -> torch.Tensor:
    """A view of one number in the middle."""
    found = tensor.detach()
    while found.dim():
        found = found[found.shape[0] // 2]
    return found

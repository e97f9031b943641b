# SPDX-License-Identifier: Apache-2.0
"""A length that stays open: a model at a ladder of capacities, each of which takes any shorter length.

`analysis.positions` proves that a longer model has the same beginning, where `mask_length` hides what lies behind the
length. `deploy.tiles` copies inputs into the smallest capacity that is enough, and cuts the outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import tvm

from smartmem_tvm.analysis.items import Mixed, require_same_graph
from smartmem_tvm.analysis.positions import LengthWork, Shares, length_work, same_prefix, shares_of
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.mask_length import with_masks
from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.ir.public_functions import MAIN
from smartmem_tvm.ir.several_sizes import TILE

if TYPE_CHECKING:
    from smartmem_tvm.frontend.open_dimension import Range

# Lengths at which kernels are made. Chosen: a kernel skips positions behind the length in steps of its tiles, and the
# shortest lengths have kernels of their own, as a tile of rows would be mostly for nothing.
_CAPACITIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
Loaded = tuple[Model, tvm.IRModule]


@dataclass(frozen=True, eq=False)
class Lengths:
    """The capacities of a model whose other dimensions have one size.

    Attributes
    ----------
    number : int
        The number of the group of functions.
    range : Range
    load : callable
        Length -> the model bound to it, and its module.
    refusal : callable
        Reason -> the error to raise.
    items : mapping, optional
        Of a model with an open batch besides, ``around`` of `ir.several_sizes.TILE`; `load` has one item.
    """

    number: int
    range: Range
    load: Callable[[int], Loaded]
    refusal: Callable[[Mixed], UserError]
    items: Mapping | None = None

    def functions(self) -> list[Loaded]:
        """Return the model at each capacity, with its module, which takes the length as a further input.

        Raises
        ------
        UserError
            If a longer model has another beginning.
        """
        most = self.range.most
        probes = max(2, min(most - 1, most // 2 + 1)), most
        try:
            if probes[0] == most:
                probes = most, most + 1
            loaded = {length: self.load(length) for length in probes}
            modules = [loaded[length][1] for length in probes]
            self._require_same(*modules, probes)
            work = length_work(*modules, probes, self.range.least)
            return self._at_capacities(work, loaded, modules[1], probes[1])
        except Mixed as reason:
            raise self.refusal(reason) from None

    def _at_capacities(self, work: LengthWork, loaded: dict, whole: tvm.IRModule, length: int) -> list[Loaded]:
        if not any(work.inputs):
            raise UserError(f"No input of the model has the dimension that {self.range} leaves open.")
        made = []
        for capacity in capacities(self.range.least, self.range.most):
            model, mod = loaded[capacity] if capacity in loaded else self.load(capacity)
            try:
                self._require_same(mod, whole, (capacity, length))
            except Mixed:
                if capacity > 1:
                    raise
                continue  # what is expanded from one position may be another operator, and two positions do
            made.append((model, self._with_facts(with_masks(mod, work, capacity), work, capacity)))
        return made

    def _require_same(self, one: tvm.IRModule, other: tvm.IRModule, lengths: tuple[int, int]) -> None:
        require_same_graph(one, other, lengths, lambda *arrays: _same_beginning(*arrays, lengths))

    def _with_facts(self, mod: tvm.IRModule, work: LengthWork, capacity: int) -> tvm.IRModule:
        facts = {
            "group": self.number,
            "items": capacity,
            "cost": capacity,
            "least": self.range.least,
            "most": self.range.most,
            "inputs": [_along(each) for each in work.inputs],
            "outputs": [_along(each) for each in work.outputs],
            "length": True,
            **({"around": self.items} if self.items is not None else {}),
        }
        mod[MAIN] = mod[MAIN].with_attr(TILE, json.dumps(facts))
        return mod


def capacities(least: int, most: int) -> list[int]:
    """Return the lengths at which kernels are made, ascending, the last one `most`."""
    found = [each for each in _CAPACITIES if least <= each < most]
    return [*found, most]


def _along(shares: Shares) -> list[dict]:
    return [asdict(each) for each in shares]


def _same_beginning(one: np.ndarray, other: np.ndarray, lengths: Sequence[int]) -> bool:
    try:
        return same_prefix(one, other, shares_of(one.shape, other.shape, lengths, ""), lengths)
    except Mixed:
        return False

# SPDX-License-Identifier: Apache-2.0
"""A length that stays open: a model at a ladder of capacities, each of which takes any shorter length.

`analysis.positions` proves that a longer model has the same beginning, where `mask_length` hides what lies behind the
length. `deploy.tiles` copies inputs into the smallest capacity that is enough, and cuts the outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm

from smartmem_tvm.analysis.items import Mixed
from smartmem_tvm.analysis.position_work import LengthWork, require_same_positions
from smartmem_tvm.analysis.positions import WINDOWS, Shares, length_work
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.early_slices import Plan, early_slices, with_early_slices
from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.ir.public_functions import MAIN
from smartmem_tvm.ir.several_sizes import TILE
from smartmem_tvm.transform.sizes.share_lengths.mask_length import with_masks

if TYPE_CHECKING:
    from smartmem_tvm.frontend.open_dimension import Range

# Lengths at which kernels are made. Chosen: a kernel skips positions behind the length in steps of its tiles, and the
# shortest lengths have kernels of their own, as a tile of rows would be mostly for nothing.
_CAPACITIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# Parts of a power of two that are capacities, too, where windows run along the positions: they compute the whole
# capacity. Chosen: at most a fifth of it is for nothing, and a tenth on average.
_BETWEEN = (1.25, 1.5, 1.75)
_LONG = 32  # the least power of two that has such parts. Chosen: shorter capacities take little time
Loaded = tuple[Model, tvm.IRModule]


@dataclass(frozen=True, eq=False)
class Proved:
    """A proof that longer inputs of a model leave the beginning of its tensors as it is.

    Attributes
    ----------
    work : LengthWork
    plan : Plan
        Slices that go before other operators.
    loaded : dict
        Length -> the model at each of two, and its module.
    probes : tuple of int
        These lengths.
    """

    work: LengthWork
    plan: Plan
    loaded: dict[int, Loaded]
    probes: tuple[int, int]


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
        try:
            return self._at_capacities(self.proved())
        except Mixed as reason:
            raise self.refusal(reason) from None

    def proved(self) -> Proved:
        """Return what is known of a model whose longer ones begin in the same way.

        Raises
        ------
        Mixed
            If a longer model has another beginning.
        """
        most = self.range.most
        probes = max(2, self.range.least, min(most - 1, most // 2 + 1)), most
        if probes[0] == most:
            probes = most, most + 1
        loaded = {probes[1]: self.load(probes[1])}
        loaded[probes[0]] = self._between(probes[0])
        modules = [loaded[length][1] for length in probes]
        require_same_positions(*modules, probes, None)
        plan = early_slices(modules[1])
        work = length_work(*(with_early_slices(each, plan) for each in modules), probes, self.range.least)
        return Proved(work, plan, loaded, probes)

    def _between(self, length: int) -> Loaded:
        """Return the model at a length between, where the bound is one of its sizes."""
        try:
            return self.load(length)
        except UserError as error:
            reason = str(error).rstrip(".").split("; ")[0]
            raise Mixed(
                f"the model takes no size of {length * self.range.step} ({reason}), as those that halve a picture and "
                f"double it again take multiples of a number only, which a step says, as in 320..640:32"
            ) from None

    def _at_capacities(self, proved: Proved) -> list[Loaded]:
        work, span = proved.work, self.range
        if not any(work.inputs):
            raise UserError(f"No input of the model has the dimension that {self.range} leaves open.")
        made = []
        for capacity in capacities(span.least, span.most, slides(work), span.step):
            try:
                made.append(self.at_capacity(proved, capacity))
            except Mixed:
                if min(number.of(capacity) for number in work.numbers) > 1:
                    raise
                continue  # what is expanded from one position may be another operator, and two positions do
        return made

    def at_capacity(self, proved: Proved, capacity: int) -> Loaded:
        """Return the model at a capacity, with its module, which takes the length as a further input.

        Raises
        ------
        Mixed
            If it begins in another way than what is known of the others.
        """
        length, work = proved.probes[1], proved.work
        whole = proved.loaded[length][1]
        model, mod = proved.loaded[capacity] if capacity in proved.loaded else self.load(capacity)
        require_same_positions(mod, whole, (capacity, length), None)
        mod = with_early_slices(mod, proved.plan)
        require_same_positions(mod, with_early_slices(whole, proved.plan), (capacity, length), work)
        return model, self._with_facts(with_masks(mod, work, capacity), work, capacity)

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
            "numbers": work.numbers,
            **({"around": self.items} if self.items is not None else {}),
        }
        mod[MAIN] = mod[MAIN].with_attr(TILE, json.dumps(facts))
        return mod


def capacities(least: int, most: int, slides: bool = False, step: int = 1) -> list[int]:
    """Return the lengths at which kernels are made, ascending, the last one `most`.

    Parameters
    ----------
    slides : bool
        Whether windows run along the positions, of which none are skipped.
    step : int
        Elements of a position.
    """
    long = [power for power in _CAPACITIES if power * step >= _LONG]
    parts = {int(power * part) for power in long for part in _BETWEEN} if slides else set()
    return [*sorted(each for each in {*_CAPACITIES, *parts} if least <= each < most), most]


def slides(work: LengthWork) -> bool:
    """Whether windows run along the positions of a model."""
    return any(each.name in WINDOWS and any(each.reads[0]) for each in work.operators if each.reads)


def _along(shares: Shares) -> list[dict]:
    return [each.facts() for each in shares]

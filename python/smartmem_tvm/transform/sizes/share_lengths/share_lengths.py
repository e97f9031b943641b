# SPDX-License-Identifier: Apache-2.0
"""ShareLengths: sizes that differ in a length run with the kernels of a larger size, whose loops end earlier."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import tvm

from ....analysis.items import Mixed
from ....analysis.length_cost import length_cost
from ....analysis.position_work import LengthWork, require_same_positions
from ....analysis.positions import length_work
from ....ir.graph import append_log
from ....ir.public_functions import MAIN
from ....ir.several_sizes import REPEATED, SIZE, TILE, repeated_sizes, with_function
from ....ir.size_groups import alone, shared_sizes, size_groups, without_sizes
from .mask_length import with_masks, with_means


@tvm.transform.module_pass(opt_level=0, name="smartmem.ShareLengths")
class ShareLengths:
    """Leave out the sizes that a larger one computes in nearly the same time, with the length as another input.

    Before::

        main_0(ids: (1, 48)): ...                main_1(ids: (1, 64)): ...

    After, with an attribute of the module (`ir.several_sizes.REPEATED`) from which `RepeatItems` makes both::

        main_1(ids: (1, 64), smartmem_length: (1,)): ...

    As for a length that stays open, `analysis.positions` proves that a longer model begins in the same way, masks hide
    what lies behind the length, and `SkipPositions` ends loops there. The predicted times of `analysis.length_cost`
    choose the sizes that keep functions of their own; one that computes no other size stays as it is.

    Refused are sizes whose operators do anything else along the length, or differ, and models with caches.

    Parameters
    ----------
    active : bool
        Whether to do anything.
    target : tvm.target.Target, optional
        The CPU, by whose cores a launch is priced; by default one core.
    """

    def __init__(self, active: bool = True, target: tvm.target.Target | None = None):
        self.active, self.target = active, target

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to a module of several sizes."""
        names = shared_sizes(mod) if self.active else []
        new, entries, log = mod, [], []
        seen: set[str] = set()
        for counts in size_groups(mod, names):
            group = _Group(mod, {name: count for name, count in counts.items() if name not in seen}, self.target)
            capacities, made = group.shared() if len(group.lengths) > 1 else ({}, [])
            seen.update(each["function"] for each in made)
            new = without_sizes(new, [each["function"] for each in made]) if made else new
            for name, capacity in capacities.items():
                new = with_function(new, capacity, name, int(mod[name].attrs[SIZE]))
            entries += made
            log += [group.decision(each) for each in made if each["function"] not in capacities]
        if not entries:
            return mod
        # First: tiles of items may be sizes that a larger one computes.
        entries += repeated_sizes(mod)
        return append_log(new.with_attr(REPEATED, json.dumps(entries)), log)


@dataclass(frozen=True, eq=False)
class _Group:
    """Sizes whose inputs differ along the same axes only.

    Attributes
    ----------
    mod : tvm.IRModule
    lengths : dict
        Function of each size -> its length.
    """

    mod: tvm.IRModule
    lengths: dict[str, int]
    target: tvm.target.Target | None

    def shared(self) -> tuple[dict[str, tvm.IRModule], list[dict]]:
        """Return the functions that take a length, and what `REPEATED` says of the sizes that they compute."""
        names = sorted(self.lengths, key=self.lengths.get)
        try:
            modules = {name: with_means(alone(self.mod, name)) for name in names}
            whole = names[-1]
            half = min(names[:-1], key=lambda name: abs(2 * self.lengths[name] - self.lengths[whole]))
            probes = self.lengths[half], self.lengths[whole]
            small, large = modules[half], modules[whole]
            require_same_positions(small, large, probes, None)
            work = length_work(small, large, probes, self.lengths[names[0]])
            if not any(work.inputs):
                return {}, []
            cost = length_cost(self.mod[whole], work, probes, self.target)
        except (Mixed, ValueError):
            return {}, []
        if not cost.served(list(self.lengths.values())):
            return {}, []
        same = {self.lengths[name]: name for name in names if self._same(modules[name], large, name, whole, work)}
        return self._chosen(modules, same, work, cost.served(list(same)))

    def _same(self, one, whole, name: str, last: str, work: LengthWork) -> bool:
        """Whether the model of a size is that of the largest one, as far as it goes."""
        try:
            require_same_positions(one, whole, (self.lengths[name], self.lengths[last]), work)
            if any(each.counted for each in work.operators):
                with_masks(one, work, self.lengths[name])  # compares the numbers that follow from the length
        except (Mixed, ValueError):
            return False
        return True

    def _chosen(self, modules: Mapping, by_length: Mapping[int, str], work: LengthWork, found: dict[int, int]):
        try:
            masked = {
                capacity: with_masks(modules[by_length[capacity]], work, capacity, padded=True)
                for capacity in set(found.values())
            }
        except (Mixed, ValueError):
            return {}, []
        found |= {capacity: capacity for capacity in masked}
        capacities = {by_length[capacity]: _with_facts(mod, work, capacity) for capacity, mod in sorted(masked.items())}
        entries = [self._entry(by_length, length, found[length], work) for length in sorted(found)]
        return capacities, entries

    def _entry(self, by_length: Mapping[int, str], length: int, capacity: int, work: LengthWork) -> dict:
        name = by_length[length]
        return {
            "function": name,
            "number": int(self.mod[name].attrs[SIZE]),
            "items": length,
            "tiles": [{"function": by_length[capacity], "items": capacity}],
            "length": True,
            **_places(work),
        }

    def decision(self, made: Mapping) -> dict:
        """Return the entry of the log for a size."""
        (tile,) = made["tiles"]
        return {
            "pass": "ShareLengths",
            "operator": made["function"],
            "action": "computed by the function of a larger size",
            "reason": f"{made['items']} positions take about as long at a capacity of {tile['items']}",
        }


def _with_facts(mod: tvm.IRModule, work: LengthWork, capacity: int) -> tvm.IRModule:
    """Return a model that takes a length, with what `SkipPositions` has to know of it."""
    facts = {"items": capacity, "length": True, "numbers": work.numbers, **_places(work)}
    mod[MAIN] = mod[MAIN].with_attr(TILE, json.dumps(facts))
    return mod


def _places(work: LengthWork) -> dict:
    pairs = (("inputs", work.inputs), ("outputs", work.outputs))
    return {name: [[share.facts() for share in shares] for shares in each] for name, each in pairs}

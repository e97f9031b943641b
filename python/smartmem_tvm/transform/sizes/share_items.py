# SPDX-License-Identifier: Apache-2.0
"""ShareItems: sizes that differ in the number of items only run as functions of smaller sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import tvm
from tvm import relax

from ...analysis.item_cost import covers
from ...analysis.items import LOOPS, ItemWork, Mixed, Share, item_work, require_same_graph
from ...ir.graph import append_log
from ...ir.several_sizes import REPEATED, SIZE
from ...ir.size_groups import alone, shared_sizes, size_groups, without_sizes


@tvm.transform.module_pass(opt_level=0, name="smartmem.ShareItems")
class ShareItems:
    """Leave out the sizes that functions of other sizes compute in nearly the same time, items at a time.

    Before::

        main_0(x: (1, 3, 224, 224)): ...     main_1(x: (4, 3, 224, 224)): ...

    After, with an attribute of the module (`ir.several_sizes.REPEATED`) from which `RepeatItems` makes ``main_1``::

        main_0(x: (1, 3, 224, 224)): ...

    `analysis.items` proves that no item depends on another one, and that the model has the same operators at each size.
    The predicted times of `analysis.item_cost` choose the sizes that keep functions of their own.

    Refused are sizes whose items depend on each other (lengths), that have other operators, or caches.

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
        found, log = [], []
        seen: set[str] = set()
        for counts in size_groups(mod, names, along_one=True):
            group = _Group(mod, {name: count for name, count in counts.items() if name not in seen})
            made = group.repeated(self.target) if len(group.counts) > 1 else []
            seen.update(group.counts if made else ())
            found += made
            log += [group.decision(each) for each in made]
        if not found:
            return mod
        left = without_sizes(mod, [each["function"] for each in found])
        return append_log(left.with_attr(REPEATED, json.dumps(found)), log)


@dataclass(frozen=True, eq=False)
class _Group:
    """Sizes whose inputs differ along the same axes only.

    Attributes
    ----------
    mod : tvm.IRModule
    counts : dict
        Function of each size -> its items.
    """

    mod: tvm.IRModule
    counts: dict[str, int]

    def repeated(self, target: tvm.target.Target | None) -> list[dict]:
        """Return what `REPEATED` says of the sizes that need no function; none if their items depend on each other."""
        names = sorted(self.counts, key=self.counts.get)
        names.sort(key=lambda name: self.counts[name] == 1)  # last: a shape with one item may be that of none
        try:
            first, second = (alone(self.mod, name) for name in names[:2])
            probes = self.counts[names[0]], self.counts[names[1]]
            require_same_graph(first, second, probes)
            work = item_work(LOOPS(first), LOOPS(second), probes)
        except (Mixed, ValueError):
            return []
        if not any(work.inputs):
            return []
        same = [name for name in names if name in names[:2] or self._same(first, names[0], name)]
        return self._chosen(work, same, target)

    def _same(self, first: tvm.IRModule, name: str, other: str) -> bool:
        try:
            require_same_graph(first, alone(self.mod, other), (self.counts[name], self.counts[other]))
        except (Mixed, ValueError):
            return False
        return True

    def _chosen(self, work: ItemWork, names: Sequence[str], target: tvm.target.Target | None) -> list[dict]:
        func, count = self.mod[names[0]], self.counts[names[0]]
        copied = sum(_numbers(ty, share) for ty, share in _tensors(func, work)) // count
        by_count = {self.counts[name]: name for name in names}
        places = {
            "inputs": [share and share.facts() for share in work.inputs],
            "outputs": [share and share.facts() for share in work.outputs],
        }
        found = []
        for items, tiles in covers(work, list(by_count), copied, target).items():
            name = by_count[items]
            parts = [{"function": by_count[each], "items": each} for each in tiles]
            number = int(self.mod[name].attrs[SIZE])
            found.append({"function": name, "number": number, "items": items, "tiles": parts, **places})
        return found

    def decision(self, made: Mapping) -> dict:
        """Return the entry of the log for a size."""
        tiles = " + ".join(str(each["items"]) for each in made["tiles"])
        return {
            "pass": "ShareItems",
            "operator": made["function"],
            "action": "computed by functions of other sizes",
            "reason": f"{made['items']} items are {tiles}",
        }


def _tensors(func: relax.Function, work: ItemWork) -> Iterator[tuple]:
    """Yield the type of each input and output of a function, with the place of its items."""
    results = func.ret_ty.fields if isinstance(func.ret_ty, relax.TupleType) else [func.ret_ty]
    yield from zip((param.ty for param in func.params), work.inputs, strict=True)
    yield from zip(results, work.outputs, strict=True)


def _numbers(ty: relax.TensorType, share: Share | None) -> int:
    return prod(map(int, ty.shape)) if share is not None else 0

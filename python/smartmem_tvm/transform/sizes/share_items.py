# SPDX-License-Identifier: Apache-2.0
"""ShareItems: sizes that differ in the number of items only run as functions of smaller sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import tvm
from tvm import ir, relax, tirx

from ..._tvm import mapped, renamed
from ...analysis.item_cost import covers
from ...analysis.items import LOOPS, ItemWork, Mixed, Share, item_work, require_same_graph
from ...ir.cache_rows import caches_of
from ...ir.graph import append_log
from ...ir.public_functions import MAIN
from ...ir.several_sizes import REPEATED, SIZE, size_functions, tile_groups
from ...ir.walk import collect

Axes = tuple[int | None, ...]
"""For each input the axis along which sizes differ."""


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
        names = size_functions(mod)
        if not self.active or len(names) < 2 or tile_groups(mod) or any(caches_of(mod[name]) for name in names):
            return mod
        found, log = [], []
        for group in _groups(mod, names):
            made = group.repeated(self.target)
            found += made
            log += [group.decision(each) for each in made]
        return append_log(_without(mod, found), log) if found else mod


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
            first, second = (_alone(self.mod, name) for name in names[:2])
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
            require_same_graph(first, _alone(self.mod, other), (self.counts[name], self.counts[other]))
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


def _alone(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """Return the function of one size as ``main``, with the kernels that it calls by the names that all sizes have."""
    func = mod[name]
    for attr in (SIZE, "global_symbol"):
        func = func.without_attr(attr)
    names = {each: renamed(each, each.name_hint.removesuffix(name.removeprefix(MAIN))) for each in _called(func)}
    body = mapped(func, (ir.GlobalVar, lambda each: names.get(each, each)))
    return tvm.IRModule({**{new: mod[old] for old, new in names.items()}, ir.GlobalVar(MAIN): body})


def _called(func: relax.Function) -> list[ir.GlobalVar]:
    return list(dict.fromkeys(collect(func.body, ir.GlobalVar)))


def _groups(mod: tvm.IRModule, names: Sequence[str]) -> Iterator[_Group]:
    """Yield the groups of sizes to look at; a size is in the group of the first axes, as a batch is in front."""
    shapes = {name: _shapes(mod[name]) for name in names}
    pairs = [(shapes[a], shapes[b]) for number, a in enumerate(names) for b in names[:number]]
    left = {name: each for name, each in shapes.items() if each is not None}
    pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    for along in sorted({axes for axes in map(_axes, *zip(*pairs)) if axes} if pairs else (), key=_in_front):
        groups: dict[tuple, list[str]] = {}
        for name, each in left.items():
            groups.setdefault(_but(each, along), []).append(name)
        for members in (each for each in groups.values() if len(each) > 1):
            counts = _counts([left[name] for name in members], along)
            yield _Group(mod, dict(zip(members, counts, strict=True)))


def _shapes(func: relax.Function) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of a function's inputs; None if one is no tensor of known shape."""
    types = [param.ty for param in func.params]
    if not all(isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr) for ty in types):
        return None
    if not all(isinstance(dim, tirx.IntImm) for ty in types for dim in ty.shape):
        return None
    return tuple(tuple(map(int, ty.shape)) for ty in types)


def _axes(one: Sequence[tuple], other: Sequence[tuple]) -> Axes | None:
    """Return the axis along which each input of two sizes differs; None if one differs along several."""
    found: list[int | None] = []
    for a, b in zip(one, other, strict=True):
        apart = [axis for axis, (m, n) in enumerate(zip(a, b)) if m != n]
        if len(a) != len(b) or len(apart) > 1:
            return None
        found.append(apart[0] if apart else None)
    return tuple(found)


def _in_front(along: Axes) -> tuple[int, ...]:
    return tuple(-1 if axis is None else axis for axis in along)


def _but(shapes: Sequence[tuple], along: Axes) -> tuple:
    """Return shapes without the sizes along some axes."""
    pairs = zip(shapes, along, strict=True)
    return tuple(shape if axis is None else (*shape[:axis], None, *shape[axis + 1 :]) for shape, axis in pairs)


def _counts(sizes: Sequence[Sequence[tuple]], along: Axes) -> list[int]:
    """Return the items of each size: an input with the fewest numbers along its axis has one for each item."""
    dims = [[shapes[number][axis] for shapes in sizes] for number, axis in enumerate(along) if axis is not None]
    return min(dims)


def _without(mod: tvm.IRModule, repeated: Sequence[Mapping]) -> tvm.IRModule:
    """Return a module without the functions of some sizes and the kernels that only they call."""
    left = mod.clone()
    gone = {mod.get_global_var(each["function"]) for each in repeated}
    rest = [func for gvar, func in mod.functions_items() if isinstance(func, relax.Function) and gvar not in gone]
    used = {gvar for func in rest for gvar in _called(func)}
    for gvar in (*gone, *(gvar for each in gone for gvar in _called(mod[each]) if gvar not in used)):
        del left[gvar]
    return left.with_attr(REPEATED, json.dumps(list(repeated)))

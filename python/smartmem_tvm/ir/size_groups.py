# SPDX-License-Identifier: Apache-2.0
"""Groups of sizes of one model that differ along the same dimensions, and their functions one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import tvm
from tvm import ir, relax, tirx

from .._tvm import mapped, renamed
from .cache_rows import caches_of
from .public_functions import MAIN
from .several_sizes import SIZE, size_functions, tile_groups
from .walk import collect

Axes = tuple[tuple[int, ...], ...]
"""For each input the axes along which sizes differ."""
_Shapes = tuple[tuple[int, ...], ...]


def size_groups(mod: tvm.IRModule, names: Sequence[str], along_one: bool = False) -> Iterator[dict[str, int]]:
    """Yield groups of sizes that differ along some axes only, those along the first axes first, as a batch is in front.

    Parameters
    ----------
    mod : tvm.IRModule
    names : sequence of str
        Functions of sizes.
    along_one : bool
        Whether an input may differ along one axis only.

    Yields
    ------
    dict
        Function of each size -> its items, or positions: the least of the dimensions that differ. A size may come in
        several groups.
    """
    shapes = {name: each for name in names if (each := _shapes(mod[name])) is not None}
    pairs = [(shapes[a], shapes[b]) for number, a in enumerate(shapes) for b in list(shapes)[:number]]
    found = {axes for axes in (_axes(*pair) for pair in pairs) if axes is not None and any(axes)}
    for along in sorted(found, key=_in_front):
        if along_one and any(len(each) > 1 for each in along):
            continue
        groups: dict[tuple, list[str]] = {}
        for name, each in shapes.items():
            groups.setdefault(_but(each, along), []).append(name)
        for members in (each for each in groups.values() if len(each) > 1):
            counts = _counts([shapes[name] for name in members], along)
            if len(set(counts)) == len(counts):  # sizes that differ along two dimensions may have one number in common
                yield dict(zip(members, counts, strict=True))


def shared_sizes(mod: tvm.IRModule) -> list[str]:
    """Return the functions of sizes that one function may serve: none of one size, open dimensions, or caches."""
    names = size_functions(mod)
    if len(names) < 2 or tile_groups(mod) or any(caches_of(mod[name]) for name in names):
        return []
    return names


def alone(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """Return the function of one size as ``main``, with the kernels that it calls by the names that all sizes have."""
    func = mod[name]
    for attr in (SIZE, "global_symbol"):
        func = func.without_attr(attr)
    names = {each: renamed(each, each.name_hint.removesuffix(name.removeprefix(MAIN))) for each in _called(func)}
    body = mapped(func, (ir.GlobalVar, lambda each: names.get(each, each)))
    return tvm.IRModule({**{new: mod[old] for old, new in names.items()}, ir.GlobalVar(MAIN): body})


def without_sizes(mod: tvm.IRModule, names: Collection[str]) -> tvm.IRModule:
    """Return a module without the functions of some sizes and the kernels that only they call."""
    left = mod.clone()
    gone = {mod.get_global_var(name) for name in names}
    rest = [func for gvar, func in mod.functions_items() if isinstance(func, relax.Function) and gvar not in gone]
    used = {gvar for func in rest for gvar in _called(func)}
    unused = dict.fromkeys(gvar for each in gone for gvar in _called(mod[each]) if gvar not in used)
    for gvar in (*gone, *unused):
        del left[gvar]
    return left


def _called(func: relax.Function) -> list[ir.GlobalVar]:
    return list(dict.fromkeys(collect(func.body, ir.GlobalVar)))


def _shapes(func: relax.Function) -> _Shapes | None:
    """Return the shapes of a function's inputs; None if one is no tensor of known shape."""
    types = [param.ty for param in func.params]
    if not all(isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr) for ty in types):
        return None
    if not all(isinstance(dim, tirx.IntImm) for ty in types for dim in ty.shape):
        return None
    return tuple(tuple(map(int, ty.shape)) for ty in types)


def _axes(one: _Shapes, other: _Shapes) -> Axes | None:
    """Return the axes along which each input of two sizes differs; None if one has another number of dimensions."""
    if any(len(a) != len(b) for a, b in zip(one, other, strict=True)):
        return None
    return tuple(tuple(axis for axis, (m, n) in enumerate(zip(a, b)) if m != n) for a, b in zip(one, other))


def _in_front(along: Axes) -> tuple:
    return max(map(len, along)), tuple(axes or (-1,) for axes in along)


def _but(shapes: _Shapes, along: Axes) -> tuple:
    """Return shapes without the sizes along some axes."""
    pairs = zip(shapes, along, strict=True)
    return tuple(tuple(None if axis in axes else dim for axis, dim in enumerate(shape)) for shape, axes in pairs)


def _counts(sizes: Sequence[_Shapes], along: Axes) -> list[int]:
    """Return the items of each size: an axis with the fewest numbers has one for each item."""
    return min([shapes[number][axis] for shapes in sizes] for number, axes in enumerate(along) for axis in axes)

# SPDX-License-Identifier: Apache-2.0
"""Recognise a channelwise window: one that slides over each channel alone, in convolutions and pools, with padding.

    pad[n, c, y, x] = 1 <= y <= h and 1 <= x <= w ? in[n, c, y - 1, x - 1] : 0
    sum[n, c, y, x] += pad[n, c, y*s + p, x*s + q] * W[c, p, q]

The channels may be innermost, and lines and columns may be one iterator of the result, as in tokens. Where channels are
innermost, a result may sum up the few channels of its group:

    sum[n, y, x, c] += pad[n, y*s + p, x*s + q, c // g * g + m] * W[c, m, p, q]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from ...ir.kernel import Kernel, Stage, substitute
from ...ir.walk import collect, loads
from ..core.contraction import split_iterator
from ..core.expressions import Walk, has_select, memory_order, uses
from ..core.nest import index
from ..core.reduction import Reduction, reduction_of
from .padding import padding_of
from .sliding_image import Image

# Channels; so many or more are lanes even where results are not contiguous along them. Chosen: they fill a vector of
# AVX2.
_CHANNELS = 8
# Channels of a group. Chosen: those that divide a vector, up to one of AVX-512; larger groups are left to products.
# docs/cpu.md (Few channels a group) has the times of 2 to 16, 2026-11-27.
_GROUPS = (2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two directions in which a window moves.

    Attributes
    ----------
    dim : int
        Dimension of the picture.
    var : Var
        Iterator of the result.
    extent, stride : int
        Number of results, and elements of the picture from one to the next.
    reach : int
        Elements of the picture from the first to the last that one result reads.
    inside : tuple of int
        The first element of the picture that is no padding, and the first of the padding behind.
    """

    dim: int
    var: ir.Var
    extent: int
    stride: int
    reach: int
    inside: tuple[int, int]

    def places(self, results: int) -> int:
        """Return the number of elements of the picture that so many results read."""
        return (results - 1) * self.stride + self.reach


@dataclass(frozen=True, eq=False)
class Group:
    """The channels that a result sums up: those of a group with as many results.

    Attributes
    ----------
    dim : int
        Dimension of the picture.
    var : Var
        Iterator of the result.
    member : Var
        Reduction iterator.
    size : int
        Channels of a group.
    """

    dim: int
    var: ir.Var
    member: ir.Var
    size: int


@dataclass(frozen=True, eq=False)
class ChannelwiseWindow:
    """A reduction over a window in the lines and columns of one picture.

    Attributes
    ----------
    reduction : Reduction
        Its reduction iterators move within the window only, or over the members of a group.
    load : TensorLoad
        The term's load of the picture.
    maker : Stage or None
        The stage that pads the picture; None if it is an input of the kernel.
    value : expression or None
        The picture in the iterators of its maker, where it is no padding.
    fill : expression or None
        The value of the padding.
    line : Side or None
        None for windows of one dimension.
    column : Side
    channel : Var or None
        The iterator of the SIMD lanes, None if that is the column. Either the result is contiguous along it, or the
        input of the padding is, and the results are stored one by one.
    group : Group or None
        None if a result reads one channel only.
    """

    reduction: Reduction
    load: ir.TensorLoad
    maker: Stage | None
    value: object
    fill: object
    line: Side | None
    column: Side
    channel: ir.Var | None
    group: Group | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        """The line, if there is one, and the column."""
        return (self.column,) if self.line is None else (self.line, self.column)

    @property
    def along(self) -> ir.Var:
        """The iterator of the SIMD lanes."""
        return self.column.var if self.channel is None else self.channel

    @property
    def outer(self) -> tuple:
        """Iterators of the result that are neither line nor column nor lane."""
        taken = [*(side.var for side in self.sides), *([] if self.channel is None else [self.channel])]
        return tuple(v for v in self.reduction.spatial if not any(v.same_as(t) for t in taken))

    @property
    def term_is_fixed(self) -> bool:
        """Whether the other factor of the term, such as the weight, is the same everywhere in a plane."""
        rest = self.term_with(tirx.const(0, self.load.ty.dtype), {})
        return not uses(rest, [side.var for side in self.sides])

    @property
    def finish_is_fixed(self) -> bool:
        """Whether the epilogue is the same everywhere in a plane."""
        return not uses(self.reduction.finish_with(self.reduction.init, {}), [side.var for side in self.sides])

    def taps_of(self, side: Side) -> tuple:
        """Return the iterators of the window that move in one direction."""
        return tuple(uses(self.load.indices[side.dim], self.reduction.reduce))

    def picture_at(self, place: Mapping, taps: Mapping[int, object]):
        """Return the picture's value, where it is no padding, at indices of its sliding dimensions."""
        where = [taps[dim] if dim in taps else substitute(at, dict(place)) for dim, at in enumerate(self.load.indices)]
        if self.maker is None:
            return self.load.source[tuple(where)]
        point = {var: index(0) for var in self.maker.spatial}
        named = zip(self.maker.body.indices, where, strict=True)
        return substitute(self.value, {**point, **{var: at for var, at in named if isinstance(var, ir.Var)}})

    def term_with(self, value, point: Mapping):
        """Return the term of a point of the window for the picture's element `value`."""
        term = substitute(self.reduction.term, dict(point))
        source = self.load.source
        return tvm_ffi.structural_map(term, (ir.TensorLoad, lambda ld: value if ld.source.same_as(source) else ld))


def channelwise_window_of(kernel: Kernel) -> ChannelwiseWindow | None:
    """Return the window in a prepared kernel, or None if there is none."""
    maker, rest = maker_of(kernel)
    reduction = reduction_of(Kernel(kernel.inputs, kernel.outputs, rest))
    if reduction is None:
        return None
    reduction = _lines_and_columns(reduction, maker)
    load = _picture(reduction, maker)
    if load is None:
        return None
    group = group_of(load, reduction.reduce, reduction.extents)
    moved = _moved(reduction, load, group)
    value, fill, inside = padding_of(maker, moved) if maker is not None else (None, None, {})
    sides = _sides(reduction, load, inside, moved)
    if sides is None or not _each_by_itself(reduction, load, sides, group):
        return None
    order = memory_order(reduction.spatial, reduction.extents, reduction.output, reduction.indices)
    sides, fastest = sorted(sides, key=lambda side: order.index(side.var)), order[-1]  # lines as the result has them
    along = _strides(reduction, load, fastest)
    line = sides[0] if len(sides) == 2 else None
    if group is not None:
        near = _strides(reduction, load, group.member)[1] == 1 and fastest.same_as(group.var) and along[0] == 1
        if not near or (maker is not None and has_select(value)):  # a group may span two joined tensors
            return None
        return ChannelwiseWindow(reduction, load, maker, value, fill, line, sides[-1], fastest, group)
    apart = _channels_apart(reduction, load, maker, sides) if maker is not None else None
    if apart is not None and not apart.same_as(fastest):
        return ChannelwiseWindow(reduction, load, maker, value, fill, line, sides[-1], apart)
    channel = None if fastest.same_as(sides[-1].var) else fastest
    if any(fastest.same_as(side.var) for side in sides[:-1]) or along[0] != 1:
        return None
    # Lanes must be contiguous in the picture, too, or as far from each other as the stride.
    if along[1] != (sides[-1].stride if channel is None else 1):
        return None
    return ChannelwiseWindow(reduction, load, maker, value, fill, line, sides[-1], channel)


def group_of(load: ir.TensorLoad, reduce: Collection, extents: Mapping) -> Group | None:
    """Return the group if a load has the index ``c // g * g + m``, a channel of the group of `c`; else None."""
    for dim, at in enumerate(load.indices):
        base, member = (at.a, at.b) if isinstance(at, tirx.Add) else (None, None)
        if not isinstance(base, tirx.Mul) or not isinstance(base.a, tirx.FloorDiv) or not isinstance(member, ir.Var):
            continue
        size = extents[member] if member in reduce else 0
        same = all(isinstance(each, tirx.IntImm) and int(each) == size for each in (base.b, base.a.b))
        if same and size in _GROUPS and isinstance(base.a.a, ir.Var) and extents.get(base.a.a, 0) % size == 0:
            return Group(dim, base.a.a, member, size)
    return None


def picture_of(reduction: Reduction, image: Image, maker: Stage | None) -> ChannelwiseWindow | None:
    """Return a window that also sums up channels as a window over single pictures.

    The result is None if the window reads only padding, or if a condition other than the padding chooses the picture's
    values.
    """
    dims = range(len(image.load.indices))[-2:]
    value, fill, inside = padding_of(maker, dims) if maker is not None else (None, None, {})
    if maker is not None and has_select(value):
        return None
    sides = [
        _side(reduction, image.load, dim, (var, stride), image.window, inside)
        for dim, var, stride in zip(dims, image.columns, image.strides, strict=True)
    ]
    if None in sides:
        return None
    return ChannelwiseWindow(reduction, image.load, maker, value, fill, *sides, None)


def _channels_apart(reduction: Reduction, load, maker: Stage, sides: list[Side]):
    """Return the iterator along which the input of the padding is contiguous, None if its lines or columns are.

    This is the case of tokens that become planes. If they were copied column by column, each element would come from a
    cache line of its own, once for each channel.
    """
    walk, read = Walk(maker.extents), loads(maker.body.value)

    def follows(dim: int) -> bool:
        return bool(read) and all(walk.load_stride(each, maker.body.indices[dim]) == 1 for each in read)

    if any(follows(side.dim) for side in sides):
        return None
    for dim, at in enumerate(load.indices):
        if isinstance(at, ir.Var) and reduction.extents.get(at, 1) >= _CHANNELS and follows(dim):
            return at
    return None


def maker_of(kernel: Kernel) -> tuple[Stage | None, tuple]:
    """Return the first stage if it writes an intermediate element by element, else None, and the other stages."""
    first, rest = kernel.stages[0], kernel.stages[1:]
    if first.reduction or not rest or not isinstance(first.body, tirx.BufferStore):
        return None, kernel.stages
    where = [at for at in first.body.indices if isinstance(at, ir.Var)]
    plain = all(isinstance(at, ir.Var | tirx.IntImm) for at in first.body.indices) and len(set(where)) == len(where)
    return (first, rest) if plain else (None, kernel.stages)


def _picture(reduction: Reduction, maker: Stage | None) -> ir.TensorLoad | None:
    """Return the load of the picture, if there is one load of it only, else None."""
    read = loads(reduction.term)
    if maker is None:
        sliding = [load for load in read if _slides(load, reduction)]
    else:
        sliding = [load for load in read if load.source.same_as(maker.body.buffer)]
    if len(sliding) != 1:
        return None
    source = sliding[0].source
    others = [load for load in (*read, *loads(reduction.finish)) if load.source.same_as(source)]
    return sliding[0] if len(others) == 1 else None


def _slides(load: ir.TensorLoad, reduction: Reduction) -> bool:
    return any(uses(at, reduction.spatial) and uses(at, reduction.reduce) for at in load.indices)


def _lines_and_columns(reduction: Reduction, maker: Stage | None) -> Reduction:
    """Return the reduction with each iterator split that the picture's indices use as ``v // q`` and ``v % q``."""
    load = _picture(reduction, maker)
    group = group_of(load, reduction.reduce, reduction.extents) if load is not None else None
    for divided in collect(load, tirx.FloorDiv) if load is not None else ():
        var, by = divided.a, divided.b
        known = isinstance(var, ir.Var) and isinstance(by, tirx.IntImm) and var in reduction.extents
        if known and not (group is not None and var.same_as(group.var)) and reduction.extents[var] % int(by) == 0:
            return _lines_and_columns(split_iterator(reduction, var, int(by)), maker)
    return reduction


def _moved(reduction: Reduction, load, group: Group | None) -> list[int]:
    """Return the dimensions of the picture in which the window moves."""
    tapped = [dim for dim, at in enumerate(load.indices) if uses(at, reduction.reduce)]
    return [dim for dim in tapped if group is None or dim != group.dim]


def _sides(reduction: Reduction, load, inside: Mapping, dims: list[int]) -> list[Side] | None:
    """Return the sides of a window in these dimensions; None if it is no window in lines and columns."""
    walk, sides = Walk(reduction.extents), []
    for dim in dims:
        at = load.indices[dim]
        taps, moved = uses(at, reduction.reduce), uses(at, reduction.spatial)
        steps = [walk.step(at, v) for v in (*moved, *taps)]
        if len(moved) != 1 or any(step is None or step < 1 for step in steps):
            return None
        side = _side(reduction, load, dim, (moved[0], steps[0]), taps, inside)
        if side is None:
            return None
        sides.append(side)
    return sides if 1 <= len(sides) <= 2 else None


def _side(reduction: Reduction, load, dim: int, moved: tuple, taps, inside: Mapping) -> Side | None:
    """Return a dimension of the picture in which results move by a variable and its stride.

    The result is None if all of the dimension is padding, or if the end of a window is not constant.
    """
    (var, stride), at = moved, load.indices[dim]
    last = {v: index(reduction.extents[v] - 1) for v in taps}
    end = sym.Analyzer().simplify(substitute(at, {**last, var: index(0)}))
    if not isinstance(end, tirx.IntImm):
        return None
    within = inside.get(dim, (0, int(load.source.shape[dim])))
    side = Side(dim, var, reduction.extents[var], stride, 1 + int(end), within)
    return None if side.inside[0] >= min(side.inside[1], side.places(side.extent)) else side


def _each_by_itself(reduction: Reduction, load, sides: list[Side], group: Group | None) -> bool:
    """Whether each other spatial iterator moves along a dimension of its own, and the window along none of these."""
    window = [v for v in reduction.reduce if group is None or not v.same_as(group.member)]
    seen = [side.var for side in sides]
    slid = [load.indices[side.dim] for side in sides]
    for dim, at in enumerate(load.indices):
        if dim not in [side.dim for side in sides]:
            used = uses(at, reduction.spatial)
            if len(used) > 1:
                return False
            seen += used
    once = len(seen) == len(set(seen)) == len(reduction.spatial)
    return once and all(sum(bool(uses(at, [v])) for at in slid) == 1 for v in window)


def _strides(reduction: Reduction, load, var) -> tuple[int | None, int | None]:
    """Return the strides of the result and of the picture along an iterator."""
    walk = Walk(reduction.extents)
    return walk.stride(reduction.output, reduction.indices, var), walk.stride(load.source, load.indices, var)

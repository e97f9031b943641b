# SPDX-License-Identifier: Apache-2.0
"""Windows over single channels on a CPU: depthwise convolution and pooling, with their padding.

    parallel for planes, or blocks of channels, and bands of lines:
      band = the input of these lines, with halo and padding     stays in the cache
      for tiles:
        acc[...] = init                                          registers
        for p, q in the window: acc = combine(acc, band[..., p, q] * W[p, q])
        out = finish(acc)

SIMD lanes are columns where the channels are outermost in memory, and channels where they are innermost. The padded
picture is never in memory as a whole. With a stride along the lanes, the copy sorts the columns into one plane for each
remainder, so that a vector of results reads vectors. A tile extends across the lanes, down the lines or along the
columns: neighbouring vectors of a tile read the same elements, which are loaded once. Lines that are shorter than a
vector are computed as whole vectors, and the surplus lanes are not stored.

Where lanes are channels, a result may sum up the few channels of its group. If a vector spans several groups, each
channel of a group is spread over the group's lanes, once for all columns of a tile:

    a0 a1 a2 a3 b0 b1 b2 b3  ->  a0 a0 a0 a0 b0 b0 b0 b0,  a1 a1 a1 a1 b1 b1 b1 b1,  ...
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from tvm import tirx

from ...ir.blends import branches
from ...ir.kernel import Kernel, substitute
from ..core.decisions import decide, declined
from ..core.expressions import split_index
from ..core.nest import SERIAL, UNROLL, VECTOR, Scope, allocate, block, index, power_of_two, scratch, store
from ..core.positions import before_length, has_length
from .channelwise_window import ChannelwiseWindow, channelwise_window_of
from .params import CpuParams
from .rule import CpuRule
from .window_band import Band, starts

# Vector operations of a tile, up to which its whole window is unrolled. Chosen: five vectors of
# results of a 7 x 7 window; no times of other bounds were kept (2026-11-24).
_WRITTEN_OUT = 256


@dataclass(frozen=True)
class DepthwiseChoice:
    """The choices for windows over single channels.

    Attributes
    ----------
    lines : int
        Lines of the result whose part of the picture is copied at a time.
    block : int
        Channels that are copied together; 1 where the lanes are columns.
    height : int
        Lines of a register tile, or columns where the lanes are channels.
    vectors : int
        Vectors of a register tile along the lanes.
    lanes : int
        Results of one vector.
    written_out : bool
        The loops over the whole window are unrolled, instead of those over one line only.
    tasks : int
        Wanted number of tasks; a single one runs on the calling thread.
    """

    lines: int
    block: int
    height: int
    vectors: int
    lanes: int
    written_out: bool
    tasks: int


class Depthwise(CpuRule):
    """The rule for windows that slide over each channel by itself."""

    def plan(self, kernel: Kernel, params: CpuParams) -> _DepthwiseNest | None:
        """Return the window with its choices, or None if the kernel is no window over single channels."""
        window = channelwise_window_of(kernel)
        if window is None:
            return declined("no window that slides over each channel by itself")
        if window.group is not None and window.group.size > params.lanes:
            size, lanes = window.group.size, params.lanes
            return declined(f"{size} channels in a group, and a vector has {lanes} lanes: a product makes more of them")
        return _DepthwiseNest(window, params)

    def emit(self, plan: _DepthwiseNest) -> tirx.Stmt:
        """Return the loop nest."""
        return plan.kernel()


class _DepthwiseNest:
    def __init__(self, window: ChannelwiseWindow, params: CpuParams):
        self.window, self.params, self.scope = window, params, Scope()
        self.reduction, self.extents = window.reduction, window.reduction.extents
        self.lines = window.line.extent if window.line else 1
        self.columns = window.column.extent
        self.channels = self.extents[window.channel] if window.channel is not None else 1
        self.taps = prod(self.extents[v] for v in self.reduction.reduce)
        self.choice = decide("depthwise", self._choice(), fits=self._fits, **self._facts())
        self.band = Band(window, self.choice.lines, self.choice.block, max(0, self.choice.lanes - self.columns))

    # -- choices -------------------------------------------------------------------------------------------------

    def _choice(self) -> DepthwiseChoice:
        p = self.params
        size = self.channels if self.window.channel is not None else self.columns
        lanes = power_of_two(p.lanes, size)
        block, lines = self._band_size(lanes)
        if self.window.channel is None and self.window.term_is_fixed and lanes < min(size, p.lanes):
            lanes *= 2
        most = min(p.window_vectors, p.tile_values // p.lanes)
        height = _evenly(lines if self.window.channel is None else self.columns, most)
        vectors = 1 if self.window.channel is not None else min(most // height, -(-size // lanes))
        written_out = self.taps * height * vectors <= _WRITTEN_OUT
        tasks = p.tasks if self.reduction.work >= p.serial_below else 1
        return DepthwiseChoice(lines, block, height, vectors, lanes, written_out, tasks)

    def _band_size(self, lanes: int) -> tuple[int, int]:
        """Return the channels and lines of a band that stays in the cache."""
        block = _block(self.channels, lanes) if self.window.channel is not None else 1
        line = block * self.window.column.places(self.columns)
        most = max(1, self.params.panel_bytes // (4 * line) // (self.window.line.stride if self.window.line else 1))
        return block, _evenly(self.lines, most)

    def _fits(self, choice: DepthwiseChoice) -> bool:
        if choice.lines > self.lines:
            return False
        if self.window.channel is not None:
            group = self.window.group.size if self.window.group is not None else 1
            whole = choice.block % group == 0 and (choice.lanes % group == 0 or group % choice.lanes == 0)
            return whole and choice.lanes <= choice.block <= self.channels and choice.height <= self.columns
        short = choice.lanes > self.columns and not self.window.term_is_fixed
        return choice.block == 1 and choice.height <= choice.lines and not short

    def _facts(self) -> dict[str, int]:
        sizes = {"lines": self.lines, "columns": self.columns, "channels": self.channels, "window": self.taps}
        strides = prod(side.stride for side in self.window.sides)
        return {**sizes, "stride": strides, "work": self.reduction.work, **self.params.facts}

    # -- tasks ---------------------------------------------------------------------------------------------------

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        outer, c = self.window.outer, self.choice
        sizes = {"plane": prod(self.extents[v] for v in outer)}
        sizes |= {"band": -(-self.lines // c.lines), "block": -(-self.channels // c.block)}

        def one(number):
            at = split_index(number, list(sizes), sizes)
            place = split_index(at["plane"], outer, self.extents)
            place = {var: self.scope.analyzer.simplify(each) for var, each in place.items()}
            first = self._start(at["band"], c.lines, self.lines)
            return self._band(place, first, self._start(at["block"], c.block, self.channels))

        def wanted(y, body: tirx.Stmt) -> tirx.Stmt:
            return before_length(self._stored(self._point({var: index(0) for var in outer}, y, index(0))), body)

        def with_band(body):
            fill = self.band.fill(self.scope, self.params, wanted if has_length() else None)
            return allocate([self.band.buffer], block(fill, body))

        return self.scope.tasks(prod(sizes.values()), c.tasks, one, "n", with_band)

    def _start(self, number, size: int, total: int):
        """Return the start of a piece; the last one overlaps the one before it where it would be shorter."""
        start = number * index(size)
        start = start if total % size == 0 else tirx.min(start, index(total - size))
        return self.scope.analyzer.simplify(start)

    def _band(self, place: dict, line, channel) -> tirx.Stmt:
        place = place if self.window.channel is None else {**place, self.window.channel: channel}
        over = self._over_columns if self.window.channel is None else self._over_channels

        def wanted(y, body: tirx.Stmt) -> tirx.Stmt:
            return before_length(self._stored(self._point(place, line + y, index(0))), body)

        copy = self.band.copy(self.scope, self.params, place, line, wanted)
        return wanted(index(0), block(copy, over(place, line)))

    def _stored(self, point: dict) -> tirx.BufferStore:
        return self.scope.simplify(self.reduction.store(self.reduction.init, point))

    # -- tiles ---------------------------------------------------------------------------------------------------

    def _over_channels(self, place: dict, line) -> tirx.Stmt:
        """Return the loops over tiles of columns, for lanes that are channels."""
        c, column, channel = self.choice, self.window.column, self.window.channel

        def seen(at):
            """Return the first channel that a vector reads: its own, or the first of the group that it lies in."""
            group = self.window.group
            if group is None or self._dealt:
                return at
            return self.scope.analyzer.simplify(at - tirx.floormod(at, index(group.size)))

        def tile(y, first, x) -> tirx.Stmt:
            where = [(self.band.result(y, x + index(i)) + seen(at), i, at) for i in range(c.height) for at in first]
            points = [self._point(place, line + y, x + index(i), {channel: place[channel] + at}) for _, i, at in where]
            return self._tile([at for at, _, _ in where], points, stored(y))

        def stored(y) -> tirx.BufferStore:
            return self._stored(self._point(place, line + y, index(0)))

        def over(y) -> tirx.Stmt:
            groups = self._groups(c.block, lambda first: self.scope.loop(tiles, partial(along, y, first), "x"))
            return before_length(stored(y), groups)

        def along(y, first, t) -> tirx.Stmt:
            return tile(y, first, self._start(t, c.height, column.extent))

        tiles = -(-column.extent // c.height)
        return self.scope.loop(c.lines, over, "y")

    def _over_columns(self, place: dict, line) -> tirx.Stmt:
        """Return the loops over tiles of lines, for lanes that are columns."""
        c = self.choice

        def tile(y, first) -> tirx.Stmt:
            where = [(y + index(i), at) for i in range(c.height) for at in first]
            points = [self._point(place, line + i, at) for i, at in where]
            return self._tile([self.band.result(i, at) for i, at in where], points)

        def lines(t) -> tirx.Stmt:
            y = self._start(t, c.height, c.lines)
            return self._groups(self.columns, lambda first: tile(y, first))

        return self.scope.loop(-(-c.lines // c.height), lines, "y")

    def _groups(self, size: int, body) -> tirx.Stmt:
        """Return `body` for groups of adjacent vectors; the last vector may overlap the one before it."""
        lanes, together = self.choice.lanes, self.choice.vectors
        groups = size // (lanes * together)
        rest = starts(max(size, lanes), lanes)[groups * together :]

        def regular(g):
            return body([g * index(lanes * together) + index(n * lanes) for n in range(together)])

        main = self.scope.loop(groups, regular, "v") if groups else None
        return block(main, body([index(at) for at in rest]) if rest else None)

    def _point(self, place: dict, line, column, more: dict | None = None) -> dict:
        down = {self.window.line.var: line} if self.window.line else {}
        return {**place, **down, self.window.column.var: column, **(more or {})}

    def _tile(self, where: list, points: list, known: tirx.BufferStore | None = None) -> tirx.Stmt:
        """Return a register tile of vectors.

        Parameters
        ----------
        where : list
            Position in the band of the first element that each vector reads.
        points : list
            The first result of each vector.
        known : BufferStore, optional
            One that is before the length.
        """
        r, lanes = self.reduction, self.choice.lanes
        acc = scratch([len(where) * lanes], r.accumulator.ty.dtype, "acc")

        def each(body) -> tirx.Stmt:
            return block(*(self._lanes(lanes, lambda j, n=n: body(n, j)) for n in range(len(where))))

        def summed(value, taps: dict) -> tirx.Stmt:
            def one(n, j):
                term = self.window.term_with(value(n, j), {**self._lane(points[n], j), **taps})
                return store(acc, r.combine(acc[n * lanes + j], term), n * lanes + j)

            return each(one)

        def add(taps: dict) -> tirx.Stmt:
            seen = self.band.tap(taps)
            shared = self.window.group is not None  # all lanes read the same channel
            return summed(lambda n, j: self.band.buffer[where[n] + seen + (index(0) if shared else j)], taps)

        start = each(lambda n, j: store(acc, r.init, n * lanes + j))
        short = lanes > self.columns and self.window.channel is None
        if short or branches(r.finish):
            finish = self._store_apart(acc, points, each)
        else:
            finish = each(lambda n, j: r.store(acc[n * lanes + j], self._lane(points[n], j)))
        over = self._over_members(where[0], summed) if self._dealt else self._over_window(add)
        return before_length(self._stored(points[0]), allocate([acc], block(start, over, finish)), known)

    @property
    def _dealt(self) -> bool:
        """Whether a vector spans several groups, so that each channel is spread over the lanes of its group."""
        return self.window.group is not None and self.window.group.size < self.choice.lanes

    def _lane(self, point: dict, j) -> dict:
        return {**point, self.window.along: point[self.window.along] + j}

    def _store_apart(self, acc, points: list, each) -> tirx.Stmt:
        """Store results from a copy of the registers: fewer than a vector has, or lane by lane."""
        r, lanes = self.reduction, self.choice.lanes
        early = self.window.finish_is_fixed and not branches(r.finish)
        kind = r.output.ty.dtype if early else acc.ty.dtype
        done = scratch([len(points) * lanes], kind, "done")

        def spill(n, j):
            value = acc[n * lanes + j]
            return store(done, r.finish_with(value, self._lane(points[n], j)) if early else value, n * lanes + j)

        def result(n, j):
            value, point = done[n * lanes + j], self._lane(points[n], j)
            if not early:
                return r.store(value, point)
            return tirx.BufferStore(r.output, value, [substitute(at, point) for at in r.indices])

        size = lanes if self.window.channel is not None else min(lanes, self.columns)
        narrow, scalar = power_of_two(lanes, size), branches(r.finish)
        stored = [
            self._lanes(narrow, lambda j, n=n, at=at: result(n, index(at) + j), scalar)
            for n in range(len(points))
            for at in starts(size, narrow)
        ]
        return allocate([done], block(each(spill), *stored))

    def _over_window(self, body) -> tirx.Stmt:
        """Return the loops over the window, those in the direction of the tile innermost, as these share loads."""
        inner = self.window.column if self.window.channel is not None else self.window.line
        moved = self.window.taps_of(inner) if inner is not None else ()
        vars_ = (*(v for v in self.reduction.reduce if v not in moved), *moved)

        def kind(var):
            return UNROLL if self.choice.written_out or var in moved else SERIAL

        return self.scope.nest(vars_, self.extents, body, "k", kind)

    def _over_members(self, where, summed) -> tirx.Stmt:
        """Return the loops over the window for vectors that span several groups.

        Each channel of a group is spread over the lanes of the group (``dealt``).
        """
        window, lanes, c = self.window, self.choice.lanes, self.choice
        group, column = window.group, window.column
        places, moved = column.places(c.height), window.taps_of(column)
        dealt = scratch([places * lanes], self.band.buffer.ty.dtype, "dealt")
        outer = [v for v in self.reduction.reduce if v not in moved and not v.same_as(group.member)]
        still = {v: index(0) for v in moved}

        def member(number: int, taps: dict) -> tirx.Stmt:
            first = where + self.band.tap({**taps, **still})
            which = [index(lane // group.size * group.size + number) for lane in range(lanes)]

            def deal(at: int) -> tirx.Stmt:
                seen = self.scope.analyzer.simplify(first + index(at * c.block))
                vector = tirx.BufferLoad(self.band.buffer, [tirx.Ramp(seen, index(1), lanes)])
                return tirx.BufferStore(
                    dealt, tirx.Shuffle([vector], which), [tirx.Ramp(index(at * lanes), index(1), lanes)]
                )

            def add(more: dict) -> tirx.Stmt:
                at = substitute(window.load.indices[column.dim], {column.var: index(0), **more})
                every = {**taps, **more, group.member: index(number)}
                return summed(lambda n, j: dealt[(index(n * column.stride) + at) * lanes + j], every)

            return block(*map(deal, range(places)), self.scope.nest(moved, self.extents, add, "k", lambda _: UNROLL))

        def line(taps: dict) -> tirx.Stmt:
            return block(*(member(number, taps) for number in range(group.size)))

        kind = UNROLL if c.written_out else SERIAL
        return allocate([dealt], self.scope.nest(outer, self.extents, line, "k", lambda _: kind))

    def _lanes(self, lanes: int, body, scalar: bool = False) -> tirx.Stmt:
        return self.scope.loop(lanes, lambda j: self.scope.simplify(body(j)), "j", SERIAL if scalar else VECTOR)


def _block(channels: int, lanes: int) -> int:
    """Return the channels that are copied together: up to four vectors, so that blocks do not overlap if possible."""
    fits = (n * lanes for n in range(4, 1, -1) if channels % (n * lanes) == 0)
    return next(fits, min(channels, 4 * lanes))


def _evenly(total: int, most: int) -> int:
    """Return the size of equal pieces of at most `most`."""
    return -(-total // -(-total // max(1, most)))

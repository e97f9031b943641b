# SPDX-License-Identifier: Apache-2.0
"""The part of a picture that some lines of a window's result read, copied with its halo and padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from tvm import ir, tirx

from ...ir.kernel import substitute
from ..core.expressions import chooses_along, has_select, intervals
from ..core.nest import SERIAL, VECTOR, Scope, block, fresh, index, power_of_two, scratch, store
from .channelwise_window import ChannelwiseWindow
from .params import CpuParams


def starts(size: int, lanes: int) -> list[int]:
    """Return the starts of vectors that cover `size` results; the last one may overlap the one before it."""
    return [min(at, size - lanes) for at in range(0, size, lanes)]


@dataclass(frozen=True, eq=False)
class Band:
    """Scratch memory for some lines of a picture.

    Attributes
    ----------
    window : ChannelwiseWindow
    lines : int
        Lines of the result.
    block : int
        Channels that are innermost in the band; 1 where the columns are.
    slack : int
        Elements behind the band that may be read.
    pictures : int
        Number of pictures in the band, one after the other; `copy` fills the one that begins at `origin`.
    on_and_on : bool
        A vector may cross the end of a line into the next one: lines are sorted into planes as columns are, and the
        padding behind a line is also the padding in front of the next.
    dtype : str or None
        Type of the elements; None for that of the picture.
    origin : expression
        Position of the picture that `copy` fills, see `picture`.
    """

    window: ChannelwiseWindow
    lines: int
    block: int
    slack: int = 0
    pictures: int = 1
    on_and_on: bool = False
    dtype: str | None = None
    origin: object = 0

    @property
    def phases(self) -> int:
        """Number of planes into which columns are sorted by their remainders: the stride, where columns are lanes."""
        return self.window.column.stride if self.window.channel is None else 1

    @cached_property
    def size(self) -> tuple[int, int]:
        """Number of lines and of columns of the picture in the band."""
        line, column = self.window.line, self.window.column
        return (line.places(self.lines) if line else 1), column.places(column.extent)

    @property
    def line_phases(self) -> int:
        """Number of planes into which lines are sorted."""
        return self.window.line.stride if self.on_and_on else 1

    @cached_property
    def pitch(self) -> int:
        """Number of columns of a plane."""
        wide, (low, high) = self.size[1], self._columns
        shared = self.on_and_on and self.phases == 1 and self.window.fill is not None
        return max(high, wide - low) if shared else -(-wide // self.phases)

    @cached_property
    def places(self) -> int:
        """Number of positions of one picture, each with `block` elements."""
        return self.phases * self.line_phases * self._high * self.pitch

    @property
    def _high(self) -> int:
        """Number of lines of a plane."""
        return -(-self.size[0] // self.line_phases)

    @cached_property
    def buffer(self):
        """The scratch memory."""
        size = self.pictures * self.places * self.block + self.slack
        return scratch([size], self.dtype or self.window.load.ty.dtype, "band")

    def picture(self, number) -> Band:
        """Return the same memory as a band whose `copy` fills picture `number`."""
        one = replace(self, origin=number * index(self.places))
        vars(one)["buffer"] = self.buffer
        return one

    def at(self, line, column):
        """Return the position in the band of an element of the picture."""
        plane, x = tirx.floormod(column, index(self.phases)), tirx.floordiv(column, index(self.phases))
        below, y = tirx.floormod(line, index(self.line_phases)), tirx.floordiv(line, index(self.line_phases))
        row = (plane * index(self.line_phases) + below) * index(self._high) + y
        return (row * index(self.pitch) + x) * index(self.block)

    def result(self, line, column):
        """Return the position in the band of the first element that a result reads."""
        down = self.window.line.stride // self.line_phases if self.window.line else 1
        across = self.window.column.stride // self.phases
        return (line * index(down * self.pitch) + column * index(across)) * index(self.block)

    def tap(self, taps: Mapping):
        """Return the offset from the first element of a window to another one."""
        load, zero = self.window.load, {side.var: index(0) for side in self.window.sides}
        where = [substitute(load.indices[side.dim], {**zero, **taps}) for side in self.window.sides]
        place = self.at(*(where if len(where) == 2 else (index(0), where[0])))
        group = self.window.group
        return place if group is None else place + taps.get(group.member, index(0))

    # -- filling it ----------------------------------------------------------------------------------------------

    def fill(self, scope: Scope, params: CpuParams, wanted: Callable | None = None) -> tirx.Stmt | None:
        """Return the statements that fill the memory with padding once: the same columns are padding in each band.

        Parameters
        ----------
        wanted : callable, optional
            As of `copy`, for the first band: lines that none of its results read are left as they are.
        """
        if self.window.fill is None:
            return None
        size = int(self.buffer.shape[0])
        if wanted is not None and self.window.line and self.phases * self.line_phases == 1 and not self.slack:
            each = self.pitch * self.block
            return scope.loop(
                self._high,
                lambda y: wanted(self._first_reader(y), self._cover(scope, y * index(each), each, params)),
                "y",
            )
        return self._cover(scope, index(0), size, params)

    def _cover(self, scope: Scope, first, size: int, params: CpuParams) -> tirx.Stmt:
        lanes = min(params.lanes, size)
        whole = scope.loop(size // lanes, lambda n: self._filled(scope, first + n * index(lanes), lanes), "n")
        rest = size % lanes
        return block(whole, self._filled(scope, first + index(size - rest), rest) if rest else None)

    def _first_reader(self, y):
        """Return the first line of the band's results that reads a line of the picture in it."""
        line = self.window.line
        return tirx.floordiv(tirx.max(y - index(line.reach - line.stride), index(0)), index(line.stride))

    def _filled(self, scope: Scope, first, lanes: int) -> tirx.Stmt:
        value = self.window.fill.astype(self.buffer.ty.dtype)
        return scope.loop(lanes, lambda j: store(self.buffer, value, first + j), "j", VECTOR)

    def copy(
        self, scope: Scope, params: CpuParams, place: dict, first, wanted: Callable = lambda _, body: body
    ) -> tirx.Stmt:
        """Return the copy of the elements that are no padding; other lines, which may hold old data, become padding.

        Parameters
        ----------
        wanted : callable
            (line of the band's results, statement) -> the statement, if that line is computed.
        """
        line = self.window.line
        if line is None:
            return self._line(scope, params, place, index(0), None)
        top = first * index(line.stride)

        def one(y):
            low, high = line.inside
            data = self._line(scope, params, place, y, top + y)
            within = scope.analyzer.simplify(tirx.all(index(low) <= top + y, top + y < index(high)))
            if not isinstance(within, tirx.IntImm) and self.window.fill is not None:
                data = tirx.IfThenElse(within, data, self._blank(scope, params, y))
            return wanted(self._first_reader(y), data)

        low, high = line.inside
        if self.lines == line.extent:  # the band has all lines, so the same lines are padding each time
            high = min(high, self.size[0])
            return scope.loop(high - low, lambda y: one(y + index(low)), "y")
        return scope.loop(self.size[0], one, "y")

    def _blank(self, scope: Scope, params: CpuParams, y) -> tirx.Stmt:
        low, high = self._columns
        lanes = power_of_two(params.lanes, self.block)

        def column(x) -> tirx.Stmt:
            first = self.origin + self.at(y, x + index(low))
            return block(*(self._filled(scope, first + index(at), lanes) for at in starts(self.block, lanes)))

        return scope.loop(high - low, column, "x")

    @property
    def _columns(self) -> tuple[int, int]:
        low, high = self.window.column.inside
        return low, min(high, self.size[1])

    def _line(self, scope: Scope, params: CpuParams, place: dict, y, top) -> tirx.Stmt:
        if self.window.channel is not None:
            return self._channels(scope, params, place, y, top)
        if self.phases > 1:
            return self._dealt(scope, place, y, top)
        low, high = self._columns
        lanes = power_of_two(params.lanes, high - low)
        return block(
            *(self._vector(scope, place, (y, top), index(low + at), None, lanes) for at in starts(high - low, lanes))
        )

    def _channels(self, scope: Scope, params: CpuParams, place: dict, y, top) -> tirx.Stmt:
        low, high = self._columns
        lanes = self._lanes(power_of_two(params.lanes, self.block))

        def column(x) -> tirx.Stmt:
            cover = starts(self.block, lanes)
            return block(*(self._vector(scope, place, (y, top), x + index(low), at, lanes) for at in cover))

        return scope.loop(high - low, column, "x")

    def _lanes(self, most: int) -> int:
        """Return the channels of a vector, so few that it reads only one of several joined tensors."""
        window, channels = self.window, fresh("v")
        if window.maker is None or not has_select(window.value):
            return most
        value = window.picture_at({var: index(0) for var in window.reduction.spatial} | {window.channel: channels}, {})
        cuts = [first for first, _ in intervals(value, channels, {channels: window.reduction.extents[window.channel]})]
        return gcd(most, self.block, *cuts)

    def _dealt(self, scope: Scope, place: dict, y, top) -> tirx.Stmt:
        """Return the copy of a line that sorts columns into planes; LLVM makes vector loads and shuffles of it."""
        (low, high), across = self._columns, self.phases
        first, last = -(-low // across), high // across

        def one(x) -> tirx.Stmt:
            return self._vector(scope, place, (y, top), x, None, 1)

        head = [one(index(x)) for x in range(low, min(first * across, high))]
        tail = [one(index(x)) for x in range(max(last * across, low), high)] if last >= first else []

        def dealt(x) -> tirx.Stmt:
            return block(*(one((x + index(first)) * index(across) + index(n)) for n in range(across)))

        main = scope.loop(last - first, dealt, "x") if last > first else None
        return block(*head, main, *tail)

    def _vector(self, scope: Scope, place: dict, line: tuple, x, channel, lanes: int) -> tirx.Stmt:
        """Return the copy of `lanes` adjacent columns, or of adjacent channels from `channel` on."""
        window, (y, top) = self.window, line

        def one(j):
            column = x if channel is not None else x + j
            point = {**place, window.channel: place[window.channel] + channel + j} if channel is not None else place
            taps = {window.column.dim: column} | ({window.line.dim: top} if window.line else {})
            if window.group is not None:
                taps[window.group.dim] = point[window.channel]
            more = index(channel) + j if channel is not None else index(0)
            value = window.picture_at(point, taps).astype(self.buffer.ty.dtype)
            return scope.simplify(store(self.buffer, value, self.origin + self.at(y, column) + more))

        lane = fresh("j")
        scope.analyzer.bind(lane, ir.Range(index(0), index(lanes)))
        scalar = window.maker is not None and has_select(window.value) and chooses_along(one(lane), [lane])
        return scope.loop(lanes, one, "j", SERIAL if scalar else VECTOR)

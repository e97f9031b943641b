# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels on a CPU: nothing is packed, register tiles slide over the padded image as it lies.

    C[b, f, y, x] = sum_{i,p,q} D[b, i, y+p, x+q] * W[b, f, i, p, q]        D: `pitch` elements from line to line

    parallel for (batch, lines):
      for tiles of `height` rows f x `width` places s = y*pitch + x:
        acc[height, width] = 0                                   registers
        for i, p, q: acc[f, s] += W[f, i, p, q] * D[i, p*pitch + q + s]        contiguous along s
        sums[f, s] = acc
      out[f, y, x] = finish(sums[f, y*pitch + x])

The places between the end of a line and the next one are computed in vain: `pitch` over the columns of the result,
where packing would copy each element of the image once for each place of the window. With a stride the image is taken
apart first, one plane for each remainder of the lines and columns, and the same walk goes through the planes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tvm import tirx

from ...ir.kernel import Kernel, substitute
from ..core.contraction import Contraction, contraction_of
from ..core.decisions import decide
from ..core.expressions import has_select, split_index
from ..core.nest import PARALLEL, SERIAL, UNROLL, Scope, allocate, block, index, scratch, store
from ..core.reduction import reduction_of
from .accumulators import Accumulators
from .params import CpuParams
from .rule import CpuRule
from .sliding_image import Image, image_of
from .tile import best_tile, column_tiles, row_tiles

_MOST_ROWS = 32  # of a group: with more of them a packed panel is read often enough to be worth packing
_MOST_ROWS_STRIDED = 128  # the same where packing gathers element by element; planes are taken apart once
_MOST_IN_VAIN = 0.04  # of the places between two lines, for the second bound
_UNROLLED = 9  # places of a window up to which they are written out


@dataclass(frozen=True)
class SlideChoice:
    """What is chosen for a convolution of few channels.

    Attributes
    ----------
    height, width : int
        The register tile: channels of the result, and places in the picture.
    lanes : int
        Places that are one vector.
    lines : int
        Lines of the result that are a task; they divide all lines.
    written_out : bool
        The places of the window are written out.
    parallel : bool
        Tasks are spread over threads.
    """

    height: int
    width: int
    lanes: int
    lines: int
    written_out: bool
    parallel: bool


class Slide(CpuRule):
    """The rule for convolutions with few channels in a group."""

    def lower(self, kernel: Kernel, params: CpuParams) -> tirx.Stmt | None:
        """Schedule the kernel, or None if it is no such convolution."""
        found = self.convolution(kernel)
        return None if found is None else _Emitter(*found, params).kernel()

    @staticmethod
    def convolution(kernel: Kernel) -> tuple[Contraction, Image] | None:
        """The contraction in a prepared kernel and the picture it reads, or None if it is no such convolution."""
        reduction = reduction_of(kernel)
        contraction = contraction_of(reduction) if reduction is not None else None
        if contraction is None or not contraction.rows or contraction.extent(contraction.rows) > _MOST_ROWS_STRIDED:
            return None
        image = image_of(contraction)
        if image is None or contraction.extent(contraction.rows) > _most_rows(contraction, image):
            return None
        return contraction, image


def _most_rows(contraction: Contraction, image: Image) -> int:
    """Rows up to which sliding over a picture is faster than packing it."""
    columns = contraction.reduction.extents[image.columns[1]]
    strided = image.strides[1] > 1 and image.pitch <= (1 + _MOST_IN_VAIN) * columns
    return _MOST_ROWS_STRIDED if strided else _MOST_ROWS


class _Emitter:
    def __init__(self, contraction: Contraction, image: Image, params: CpuParams):
        self.contraction, self.image, self.scope = contraction, image, Scope()
        self.reduction, self.extents = contraction.reduction, contraction.reduction.extents
        self.rows = contraction.extent(contraction.rows)
        self.outer = (*contraction.batch, *contraction.columns[:-2])
        self.lines, self.columns = (self.extents[v] for v in image.columns)
        self.pitch = image.pitch
        self.choice = decide("slide", self._choice(params), fits=self._fits, **self._facts(params))
        self.params = replace(params, lanes=self.choice.lanes)

    # -- what is chosen ------------------------------------------------------------------------------------------

    def _choice(self, params: CpuParams) -> SlideChoice:
        wanted = params.tasks if self.reduction.work >= params.serial_below else 1
        batch = prod(self.extents[v] for v in self.outer)
        whole = (n for n in range(self.lines, 0, -1) if self.lines % n == 0)
        lines = next(n for n in whole if batch * (self.lines // n) >= wanted or n == 1)
        tile = best_tile(self.rows, self._places(lines), params)
        written_out = prod(self.extents[v] for v in self.image.window) <= _UNROLLED
        return SlideChoice(tile.height, tile.width, params.lanes, lines, written_out, wanted > 1)

    def _fits(self, choice: SlideChoice) -> bool:
        return self.lines % choice.lines == 0 and choice.height <= self.rows

    def _facts(self, params: CpuParams) -> dict[str, int]:
        window = prod(self.extents[v] for v in self.image.window)
        sizes = {"rows": self.rows, "lines": self.lines, "columns": self.columns, "window": window}
        depth = self.contraction.extent(self.contraction.depth)
        places = self._places(self.lines)
        return {**sizes, "depth": depth, "stride": prod(self.image.strides), "places": places, **params.facts}

    def _places(self, lines: int) -> int:
        """From the first result of some lines to the last one."""
        return (lines - 1) * self.pitch + self.columns

    # -- tasks ---------------------------------------------------------------------------------------------------

    def kernel(self) -> tirx.Stmt:
        """The whole nest."""
        parts = self.lines // self.choice.lines
        tasks = parts * prod(self.extents[v] for v in self.outer)

        def task(number):
            place = split_index(tirx.floordiv(number, index(parts)), self.outer, self.extents)
            first = tirx.floormod(number, index(parts)) * index(self.choice.lines)
            return self._lines({var: self.scope.analyzer.simplify(at) for var, at in place.items()}, first)

        return self.scope.loop(tasks, task, "task", PARALLEL if self.choice.parallel and tasks > 1 else SERIAL)

    def _lines(self, place: Mapping, first) -> tirx.Stmt:
        """The results of some lines, for all rows."""
        dtype = self.reduction.accumulator.ty.dtype
        sums = scratch([self.rows, self._places(self.choice.lines)], dtype, "sums")
        if self.image.strides == (1, 1):
            return allocate(
                [sums], block(self._tiles(place, self._whole(first), sums), self._finish(place, first, sums))
            )
        planes = self._planes(dtype)
        statements = (self._take_apart(place, first, planes), self._tiles(place, self._apart(planes), sums))
        return allocate([sums, planes], block(*statements, self._finish(place, first, sums)))

    # -- the picture ---------------------------------------------------------------------------------------------

    def _whole(self, first):
        """Reads the picture where it lies, beyond the end of a line into the next."""
        line, column = self.image.columns
        *lead, down, across = self.image.load.indices

        def read(place: Mapping, depth: Mapping, at):
            point = {**place, **depth, line: first, column: index(0)}
            where = [substitute(each, point) for each in (*lead, down, across)]
            where[-1] = where[-1] + at
            return self.image.load.source[tuple(where)]

        return read

    def _planes(self, dtype):
        """Scratch for a plane of each remainder of lines and columns, of each channel."""
        channels = [self.extents[v] for v in self._channels]
        down, across = self.image.strides
        reach = 1 + self._last_tap[0] // down
        return scratch([*channels, down, across, self.choice.lines - 1 + reach, self.pitch], dtype, "planes")

    @property
    def _channels(self) -> tuple:
        return tuple(v for v in self.contraction.depth if v not in self.image.window)

    @property
    def _last_tap(self) -> tuple[int, int]:
        """The farthest line and column that the first result reads."""
        ends = {v: index(self.extents[v] - 1) for v in self.contraction.depth}
        point = {**ends, **{v: index(0) for v in (*self.image.columns, *self.outer)}}
        return tuple(int(self.scope.analyzer.simplify(substitute(at, point))) for at in self.image.load.indices[-2:])

    def _take_apart(self, place: Mapping, first, planes) -> tirx.Stmt:
        """Copy what these lines read: ``planes[i, a, b, y, x] = source[i, (first + y)*down + a, x*across + b]``."""
        (down, across), (high, wide) = self.image.strides, self.image.sizes
        *lead, _, _ = self.image.load.indices

        def channel(point: dict) -> tirx.Stmt:
            at, front = point.values(), [substitute(each, {**place, **point}) for each in lead]
            return block(*(lines_of(at, front, a) for a in range(down)))

        def lines_of(at: list, front: list, a: int) -> tirx.Stmt:
            # the last lines of the picture may have no partner in every plane
            lines = min(int(planes.shape[-2]), -(-(high - a - (self.lines - self.choice.lines) * down) // down))

            def copies(y, x, count: int) -> list:
                return [copy(y, x, b) for b in range(count)]

            def copy(y, x, b: int) -> tirx.Stmt:
                source = self.image.load.source[(*front, (first + y) * index(down) + a, x * index(across) + b)]
                # Halves become the numbers that are summed here, once, and not once for each row.
                return self.scope.simplify(store(planes, source.astype(planes.ty.dtype), *at, a, b, y, x))

            def line(y) -> tirx.Stmt:
                # All planes at once: what lies next to each other is read as vectors, and shuffled.
                whole, rest = divmod(wide, across)
                main = self.scope.loop(whole, lambda x: block(*copies(y, x, across)), "x") if whole else None
                return block(main, *copies(y, index(whole), rest))

            return self.scope.loop(lines, line, "y")

        return self.scope.nest(self._channels, self.extents, channel, "i")

    def _apart(self, planes):
        """Reads the planes."""
        line, column = self.image.columns
        taps = self.image.load.indices[-2:]

        def read(place: Mapping, depth: Mapping, at):
            point = {**place, **depth, line: index(0), column: index(0)}
            tap = [substitute(each, point) for each in taps]
            split = [(tirx.floormod(t, index(s)), tirx.floordiv(t, index(s))) for t, s in zip(tap, self.image.strides)]
            (a, y), (b, x) = split
            return planes[(*(depth[v] for v in self._channels), a, b, y, x + at)]

        return read

    # -- tiles ---------------------------------------------------------------------------------------------------

    def _tiles(self, place: Mapping, read, sums) -> tirx.Stmt:
        width, total = self.choice.width, self._places(self.choice.lines)
        whole, tails, start = total // width, [], total // width * width

        def strip(at, wide: int) -> tirx.Stmt:
            def tiles(first: int, height: int):
                return lambda t: self._tile(place, read, sums, index(first) + t * index(height), at, height, wide)

            found = row_tiles(self.rows, self.choice.height)
            return block(*(self.scope.loop(n, tiles(first, height), "tile") for first, n, height in found))

        main = self.scope.loop(whole, lambda s: strip(s * index(width), width), "strip") if whole else None
        for wide in column_tiles(total - start, self.params):
            tails.append(strip(index(start), wide))
            start += wide
        return block(main, *tails)

    def _tile(self, place: Mapping, read, sums, row, at, height: int, width: int) -> tirx.Stmt:
        acc = Accumulators(self.scope, height, width, self.params.lanes, sums.ty.dtype)
        left, rows = self.contraction.left, self.contraction.rows

        def add(depth: Mapping) -> tirx.Stmt:
            def one(i, j, value):
                point = {**place, **depth, **split_index(row + i, rows, self.extents)}
                return value + substitute(left, point) * read(place, depth, at + j)

            return acc.set(one)

        start = acc.set(lambda i, j, _: self.reduction.init)
        spill = acc.each(lambda i, j, value: store(sums, value, row + i, at + j))
        return acc.allocate(start, self._over_depth(add), spill)

    def _over_depth(self, body) -> tirx.Stmt:
        def kind(var):
            return UNROLL if self.choice.written_out and var in self.image.window else SERIAL

        return self.scope.nest((*self._channels, *self.image.window), self.extents, body, "k", kind)

    def _finish(self, place: Mapping, first, sums) -> tirx.Stmt:
        line, column = self.image.columns
        plain = not has_select(self.reduction.finish)

        def result(row, y, x):
            point = {**place, **split_index(row, self.contraction.rows, self.extents), line: first + y, column: x}
            return self.scope.simplify(self.reduction.store(sums[row, y * index(self.pitch) + x], point))

        def across(row, y) -> tirx.Stmt:
            if not plain:
                return self.scope.loop(self.columns, lambda x: result(row, y, x), "x")
            whole = self.columns // self.params.lanes * self.params.lanes
            starts = [(0, whole), (whole, self.columns - whole)]
            return block(*(self._vectors(n, lambda x, s=s: result(row, y, index(s) + x)) for s, n in starts if n))

        lines = self.choice.lines
        return self.scope.loop(self.rows, lambda r: self.scope.loop(lines, lambda y: across(r, y), "y"), "row")

    def _vectors(self, width: int, body) -> tirx.Stmt:
        return self.scope.vectors(width, self.params.lanes, body)

# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels on a CPU: register tiles slide over the padded image in place, without im2col.

    C[b, f, y, x] = sum_{i,p,q} D[b, i, y+p, x+q] * W[b, f, i, p, q]        D: `pitch` elements from line to line

    parallel for (batch, lines):
      for tiles of `height` rows f x `width` places s = y*pitch + x:
        acc[height, width] = 0                                   registers
        for i, p, q: acc[f, s] += W[f, i, p, q] * D[i, p*pitch + q + s]        contiguous along s
        sums[f, s] = acc
      out[f, y, x] = finish(sums[f, y*pitch + x])

The sums between the end of a line and the next one are computed in vain, which costs `pitch` / columns of the time.
Packing would instead copy each element of the image once for each element of the window. A picture with padding or a
stride is copied by each task, with its padding, and with one plane for each remainder of the lines and columns. Tiles
slide over these planes in the same way, and the padded picture is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tvm import tirx

from ...ir.blends import branches
from ...ir.kernel import Kernel, substitute
from ..core.decisions import decide, declined, priced
from ..core.expressions import split_index
from ..core.nest import PARALLEL, SERIAL, UNROLL, Scope, allocate, block, index, scratch, store
from ..core.plans import Price
from . import machine
from .cost import STRIDED, SUMS, THIRD_LEVEL, Copied
from .gemm.axis import Axis
from .gemm.depth import NestedDepth
from .gemm.epilogue import Stored
from .gemm.fma_kernel import FmaKernel
from .gemm.gemm import Gemm
from .gemm.operands import Reader
from .params import CpuParams
from .priced_work import Done, Work
from .rule import CpuRule
from .sliding_convolution import Convolution, convolution_of
from .tile import best_tile, column_tiles, row_tiles, steps_of
from .window_band import Band

_UNROLLED = 9  # elements of a window, up to which its loops are unrolled. Chosen: all those of 3 x 3


@dataclass(frozen=True)
class SlideChoice:
    """The choices for a convolution of few channels.

    Attributes
    ----------
    height, width : int
        The register tile: channels of the result, and positions in the picture.
    lanes : int
        Positions of one vector.
    lines : int
        Lines of the result in a task; they divide all lines.
    written_out : bool
        The loops over the window are unrolled.
    parallel : bool
        Tasks run on several threads.
    """

    height: int
    width: int
    lanes: int
    lines: int
    written_out: bool
    parallel: bool


class Slide(CpuRule):
    """The rule for convolutions with few channels in a group."""

    def plan(self, kernel: Kernel, params: CpuParams) -> _SlideNest | None:
        """Return the convolution with its choices, or None if the kernel is no convolution of few channels."""
        found = convolution_of(kernel)
        if found is None:
            return declined("no convolution whose groups have so few channels that packing does not pay")
        plan = _SlideNest(found, params)
        priced(lambda: plan.price)
        return plan

    def emit(self, plan: _SlideNest) -> tirx.Stmt:
        """Return the loop nest."""
        return plan.kernel()


class _SlideNest:
    def __init__(self, found: Convolution, params: CpuParams):
        self.contraction, self.image, self.picture = found.contraction, found.image, found.picture
        self.scope, self.params = Scope(), params
        self.reduction, self.extents = self.contraction.reduction, self.contraction.reduction.extents
        self.rows = self.contraction.extent(self.contraction.rows)
        self.outer = (*self.contraction.batch, *self.contraction.columns[:-2])
        self.lines, self.columns = (self.extents[v] for v in self.image.columns)
        self.channels = tuple(v for v in self.contraction.depth if v not in self.image.window)
        self.pitch = self.image.pitch if self.picture is None else self._band(1).pitch
        self.choice = decide("slide", self._choice(), fits=self._fits, **self._facts())
        self.params = replace(params, lanes=self.choice.lanes)
        self.band = None if self.picture is None else self._band(self.choice.lines)

    # -- choices -------------------------------------------------------------------------------------------------

    def _choice(self) -> SlideChoice:
        p = self.params
        wanted = p.tasks if self.reduction.work >= p.serial_below else 1
        batch = prod(self.extents[v] for v in self.outer)
        whole = [n for n in range(1, self.lines + 1) if self.lines % n == 0]
        enough = [n for n in whole if batch * (self.lines // n) >= wanted or n == 1]
        lines = min(enough, key=lambda n: self._work(n).price.cycles)
        tile = best_tile(self.rows, self._places(lines), p)
        written_out = prod(self.extents[v] for v in self.image.window) <= _UNROLLED
        return SlideChoice(tile.height, tile.width, p.lanes, lines, written_out, wanted > 1)

    def _work(self, lines: int, shared: int = 1) -> Work:
        """Return the work of all lines of all groups and images, `lines` at a time."""
        p, places = self.params, self._places(lines)
        times = prod(self.extents[v] for v in self.outer) * (self.lines // lines)
        depth = self.contraction.extent(self.contraction.depth)
        tile = best_tile(self.rows, places, p)
        parts: dict[str, list[Done]] = {
            "multiply-adds": steps_of(tile, self.rows, places, p, times=times * depth),
            "sums": [(times * self.rows * places / p.lanes, SUMS)],
        }
        if self.picture is None:
            return Work(p, parts, shared=shared)
        band = self._band(lines)
        copied = band.pictures * band.places
        # A band of one plane is filled with padding, and then copied in vectors.
        vectors = band.phases == 1
        parts["copies of the picture"] = [
            (times * copied * 2, Copied(p.lanes)) if vectors else (times * copied, STRIDED)
        ]
        if copied * machine.FLOAT_BYTES > p.panel_bytes:
            reads = 1 + -(-self.rows // tile.height)
            parts["copies that are not near"] = [(times * copied * machine.FLOAT_BYTES * reads, THIRD_LEVEL)]
        return Work(p, parts, shared=shared)

    @property
    def price(self) -> Price:
        """The price of all work, in cycles of all threads together."""
        return self._work(self.choice.lines, self.params.cores if self.choice.parallel else 1).price

    def _fits(self, choice: SlideChoice) -> bool:
        return self.lines % choice.lines == 0 and choice.height <= self.rows

    def _facts(self) -> dict[str, int]:
        window = prod(self.extents[v] for v in self.image.window)
        sizes = {"rows": self.rows, "lines": self.lines, "columns": self.columns, "window": window}
        depth = self.contraction.extent(self.contraction.depth)
        places = self._places(self.lines)
        return {**sizes, "depth": depth, "stride": prod(self.image.strides), "places": places, **self.params.facts}

    def _places(self, lines: int) -> int:
        """Return the number of sums of some lines, with those in vain; whole vectors of a copy, which has slack."""
        places = self._between(lines, self.pitch)
        return places if self.picture is None else -(-places // self.params.lanes) * self.params.lanes

    def _between(self, lines: int, pitch: int) -> int:
        """Return the number of positions from the first result of some lines to the last one."""
        return (lines - 1) * pitch + self.columns

    # -- tasks ---------------------------------------------------------------------------------------------------

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        parts = self.lines // self.choice.lines
        tasks = parts * prod(self.extents[v] for v in self.outer)

        def task(number):
            place = split_index(tirx.floordiv(number, index(parts)), self.outer, self.extents)
            first = tirx.floormod(number, index(parts)) * index(self.choice.lines)
            place = {var: self.scope.analyzer.simplify(at) for var, at in place.items()}
            return self._lines(place, self.scope.analyzer.simplify(first))

        return self.scope.loop(tasks, task, "task", PARALLEL if self.choice.parallel and tasks > 1 else SERIAL)

    def _lines(self, place: Mapping, first) -> tirx.Stmt:
        """Return the statements for some lines of the result, for all rows."""
        sums = scratch([self.rows, self._places(self.choice.lines)], self.reduction.accumulator.ty.dtype, "sums")
        finish = self._finish(place, first, sums)
        if self.band is None:
            return allocate([sums], block(self._tiles(place, self._whole(first), sums), finish))
        fill, tiles = self.band.fill(self.scope, self.params), self._tiles(place, self._copied, sums)
        return allocate([sums, self.band.buffer], block(fill, self._copy(place, first), tiles, finish))

    # -- the picture ---------------------------------------------------------------------------------------------

    def _whole(self, first):
        """Return a function that reads the picture in place, beyond the end of a line into the next one."""
        line, column = self.image.columns
        *lead, down, across = self.image.load.indices

        def read(place: Mapping, depth: Mapping, at):
            point = {**place, **depth, line: first, column: index(0)}
            where = [substitute(each, point) for each in (*lead, down, across)]
            where[-1] = where[-1] + at
            return self.image.load.source[tuple(where)]

        return read

    def _band(self, lines: int) -> Band:
        """Return scratch memory for the input of some lines, one channel after the other."""
        channels, dtype = prod(self.extents[v] for v in self.channels), self.reduction.accumulator.ty.dtype
        band = Band(self.picture, lines, 1, 0, channels, True, dtype)
        # The padding behind the last line, which is not shared with a next line.
        beyond = max(0, band.size[1] - band.phases * band.pitch)
        return replace(band, slack=beyond + -self._between(lines, band.pitch) % self.params.lanes)

    def _channel(self, point: Mapping):
        flat = index(0)
        for var in self.channels:
            flat = flat * index(self.extents[var]) + point[var]
        return flat

    def _copy(self, place: Mapping, first) -> tirx.Stmt:
        def channel(point: dict) -> tirx.Stmt:
            one = self.band.picture(self._channel(point))
            return one.copy(self.scope, self.params, {**place, **point}, first)

        return self.scope.nest(self.channels, self.extents, channel, "i")

    def _copied(self, _: Mapping, depth: Mapping, at):
        """Return an element of the copy."""
        channel = self._channel(depth) * index(self.band.places)
        taps = {v: depth[v] for v in self.image.window}
        return self.band.buffer[channel + self.band.tap(taps) + at]

    # -- tiles ---------------------------------------------------------------------------------------------------

    def _tiles(self, place: Mapping, read, sums) -> tirx.Stmt:
        """Return the products of all rows with all positions of some lines."""
        width, total = self.choice.width, self._places(self.choice.lines)
        start, strips = total // width * width, [(0, total // width, width)] if total >= width else []
        for wide in column_tiles(total - start, self.params):
            strips.append((start, 1, wide))
            start += wide
        micro = FmaKernel(
            *(self.scope, self.params.lanes, sums.ty.dtype),
            Reader(lambda rows, step: lambda i: self._weight({**place, **step.point}, rows.first + i)),
            Reader(lambda strip, step: lambda j: read(place, step.point, strip.first + j)),
            NestedDepth(self.scope, (*self.channels, *self.image.window), self.extents, self._kind),
            Stored(lambda value, row, at: store(sums, value, row, at), self.reduction.init),
        )
        rows = Axis.whole(*row_tiles(self.rows, self.choice.height))
        return Gemm(self.scope, micro, rows, Axis.whole(*strips)).nest()

    def _weight(self, point: Mapping, row):
        return substitute(self.contraction.left, {**point, **split_index(row, self.contraction.rows, self.extents)})

    def _kind(self, var):
        """Return the kind of the loop over an iterator of the depth."""
        return UNROLL if self.choice.written_out and var in self.image.window else SERIAL

    def _finish(self, place: Mapping, first, sums) -> tirx.Stmt:
        line, column = self.image.columns
        plain = not branches(self.reduction.finish)

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

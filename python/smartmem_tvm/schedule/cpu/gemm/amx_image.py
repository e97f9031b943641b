# SPDX-License-Identifier: Apache-2.0
"""The image of a convolution as the right operand of AMX: it is rounded once for each column of a window.

    tiles[q, y, c // 32 * across + x // 16, c % 32 // 2, x % 16] = bfloat16(image[c, y, x * stride + q]), ... c + 1

Another line of a window is another line of these tiles, so an element is copied three times for a 3 x 3 window, and not
nine times. The columns of a window are stored separately, because a tile whose rows begin in the middle of a cache line
takes five times as long to load (55 cycles instead of 11, Sapphire Rapids).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import tirx

from ....ir.kernel import substitute
from ...core.contraction import Contraction
from ...core.expressions import Walk
from ...core.nest import Scope, index
from ..cost import ROUNDED, STRIDED
from ..priced_work import Done
from ..sliding_image import Image, image_of
from . import amx
from .amx import DEPTH, SIDE
from .amx_block import SPAN, pair_of


@dataclass(frozen=True, eq=False)
class AmxImage:
    """The image that windows slide over, and its lines cut into tiles.

    Attributes
    ----------
    image : Image
    channel : Var
        Reduction iterator of the channels; it has to be the last one of the depth.
    lines, columns : int
        Lines and columns of the result.
    channels : int
        Channels, rounded up to whole tiles.
    taps : tuple of tuple of int
        For each iterator of the window: its extent, and its stride in lines and in columns of the image.
    """

    image: Image
    channel: object
    lines: int
    columns: int
    channels: int
    taps: tuple[tuple[int, int, int], ...]

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def together(self) -> int:
        """Lines of the result in one block: two, where a line fits in a tile."""
        return 2 if self.columns <= SIDE else 1

    @property
    def apart(self) -> int:
        """Columns of the result from one tile to the next: a line, where it fits in a tile."""
        return min(SIDE, self.columns)

    @property
    def unit(self) -> int:
        """Results in the lines of one block."""
        return self.together * self.columns

    @property
    def spans(self) -> int:
        """Blocks of results in a line."""
        return -(-self.columns // SPAN)

    # -- tiles -----------------------------------------------------------------------------------------------------

    @property
    def across(self) -> int:
        """Tiles in a line."""
        return -(-self.columns // SIDE)

    @cached_property
    def column_taps(self) -> tuple[int, int]:
        """Columns of the window, and their stride in columns of the image."""
        return next(((extent, step) for extent, _, step in self.taps if step), (1, 0))

    @property
    def width(self) -> int:
        """Columns of the image that whole tiles read."""
        extent, step = self.column_taps
        return (self.across * SIDE - 1) * self.image.strides[1] + (extent - 1) * step + 1

    def image_lines(self, lines: int) -> int:
        """Return the number of lines of the image that some lines of the result read."""
        return (lines - 1) * self.image.strides[0] + sum((extent - 1) * step for extent, step, _ in self.taps) + 1

    def shape(self, lines: int) -> list[int]:
        """Return the shape of the tiles for some lines of the result, in pairs of bfloat16."""
        blocks = self.channels // DEPTH * self.across
        return [self.column_taps[0], self.image_lines(lines), blocks, DEPTH // 2, SIDE]

    def elements(self, results: int) -> int:
        """Return the number of elements of the tiles for some results."""
        taps, lines, blocks, pairs, side = self.shape(-(-results // self.columns))
        return taps * lines * blocks * pairs * side * 2

    def copies(self, results: int) -> Done:
        """Return the elements that are copied into the tiles for some results, of columns that may be strided."""
        return self.elements(results), ROUNDED if self.image.strides[1] == 1 else STRIDED

    def tiles_of(self, results: int) -> int:
        """Return the number of tiles that hold some results."""
        return -(-results // self.columns) * self.across

    def copy(self, scope: Scope, tiles, first) -> tirx.Stmt:
        """Return the copy into `tiles` for the lines of the result from `first` on, of which there may be too few."""
        load, (down, along), (_, step) = self.image.load, self.image.strides, self.column_taps
        taps, lines, _, pairs, _ = map(int, tiles.shape)
        last = index(self.image.sizes[0] - 1)

        def vector(line, number, tap, tile, pair) -> tirx.Stmt:
            start = tile * index(SIDE * along) + tap * index(step)
            row = tirx.min(first * index(down) + line, last) if lines < self.image.sizes[0] else line
            channel = number * index(DEPTH) + pair * index(2)
            both = []
            for odd in (0, 1):
                lead = [substitute(each, {self.channel: channel + index(odd)}) for each in load.indices[:-2]]
                both.append(load.source[(*lead, row, tirx.Ramp(start, index(along), SIDE))])
            where = [tap, line, number * index(self.across) + tile, pair, tirx.Ramp(index(0), index(1), SIDE)]
            return tirx.BufferStore(tiles, pair_of(*both), where)

        # The order of loops keeps an element in the cache until it is read for the next tap.
        sizes = {"line": lines, "channels": self.channels // DEPTH, "tap": taps, "tile": self.across, "pair": pairs}

        def nest(names: list[str], *at) -> tirx.Stmt:
            if not names:
                return scope.simplify(vector(*at))
            return scope.loop(sizes[names[0]], lambda v: nest(names[1:], *at, v), names[0])

        return nest(list(sizes))

    def at(self, tiles, place, step):
        """Return the address of a step's tile that begins with result number `place`, counted from the first one."""
        columns, blocks = index(self.columns), index(self.channels // DEPTH)
        line = tirx.floordiv(place, columns) * index(self.image.strides[0])
        tap, column = tirx.floordiv(step, blocks), index(0)
        for extent, down, along in reversed(self.taps):
            digit, tap = tirx.floormod(tap, index(extent)), tirx.floordiv(tap, index(extent))
            line, column = (line, digit) if along else (line + digit * index(down), column)
        tile = tirx.floordiv(tirx.floormod(place, columns), index(SIDE))
        block = tirx.floormod(step, blocks) * index(self.across) + tile
        return amx.address(tiles, column, line, block, 0, 0)


def amx_image_of(contraction: Contraction) -> AmxImage | None:
    """Return the image in the right operand of a contraction; None if it cannot be copied into these tiles.

    The caller has to check that the image has `width` columns and `channels` channels.
    """
    image, extents = image_of(contraction), contraction.reduction.extents
    if image is None or len(contraction.columns) != 2 or contraction.batch:
        return None
    channels = [v for v in contraction.depth if v not in image.window]
    if len(channels) != 1:
        return None
    walk, (down, across) = Walk(extents), image.load.indices[-2:]
    taps = tuple((extents[v], walk.step(down, v), walk.step(across, v)) for v in image.window)
    zero = {v: index(0) for v in (*contraction.columns, *contraction.depth)}
    starts = [walk.analyzer.simplify(substitute(each, zero)) for each in (down, across)]
    begins = all(isinstance(each, tirx.IntImm) and int(each) == 0 for each in starts)
    along = [tap for tap in taps if tap[2]]
    if not begins or len(along) > 1 or any(tap[1] for tap in along):
        return None
    lines, columns = (extents[v] for v in contraction.columns)
    return AmxImage(image, channels[0], lines, columns, -(-extents[channels[0]] // DEPTH) * DEPTH, taps)

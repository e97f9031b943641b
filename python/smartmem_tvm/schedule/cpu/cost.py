# SPDX-License-Identifier: Apache-2.0
"""The model of time of a CPU: rules describe the work of a plan as plain data, and this file says how long it takes.

A unit is the smallest piece of work that has a time: a micro-kernel's step along the depth, an element that is copied,
a byte from a level of memory, a thread that is woken. `priced_work` adds them up.

No other file of `schedule/cpu` reads a figure in cycles from `machine`. docs/cpu.md lists the units and who uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import NamedTuple

from ...ir.packings import QUADS
from . import machine
from .packed_vectors import has_dot
from .params import FEW_REGISTERS, CpuParams

_PER_STEP = 2  # operations of the loop itself per step, its addition and its branch: fitted with `machine.ISSUE`
_NARROW = 8  # lanes. Chosen: the costs of lines were fitted with AVX2, and others with AVX-512


# -- steps of micro-kernels ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fixed:
    """A unit that takes as long on all processors."""

    each: float

    def cycles(self, params: CpuParams) -> float:
        """Return the same for all processors."""
        return self.each


@dataclass(frozen=True)
class Fma:
    """A step along the depth of a register tile: multiplications, loads and the panel, or the latency of a sum.

    Fitted to products of 840 x 256 and 840 x 512 by 960 columns, 23 tiles with AVX-512, 14 with AVX2: docs/cpu.md.

    Attributes
    ----------
    height, vectors : int
        Rows of the tile, and vectors in a row.
    far : bool
        The panel no longer stays in the second-level cache.
    """

    height: int
    vectors: int
    far: bool = False

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the step."""
        height, vectors = self.height, self.vectors
        issue = machine.ISSUE if params.registers > FEW_REGISTERS else machine.ISSUE_FEW_REGISTERS
        stream = machine.FAR_STREAM if self.far else machine.STREAM
        beside = issue * (height + vectors + _PER_STEP) + stream * vectors
        return max(_busy(height * vectors, height + vectors) + beside, machine.FMA_LATENCY)


@dataclass(frozen=True)
class FmaAlongDepth:
    """A step of tiles that are narrower than a vector, whose sums are vectors along the depth.

    Attributes
    ----------
    tiles : tuple of (int, int)
        Number of tiles, and rows of each.
    width : int
        Columns.
    lanes : int
        Steps along the depth of a vector.
    depth : int
        Steps after which the lanes of the sums are added up.
    """

    tiles: tuple[tuple[int, int], ...]
    width: int
    lanes: int
    depth: int

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of one step along the depth, for all rows together."""
        width = self.width
        steps = sum(n * max(_busy(high * width, high + width), machine.FMA_LATENCY) for n, high in self.tiles)
        rows = sum(n * high for n, high in self.tiles)
        return steps / self.lanes + rows * width * machine.ADD_LANES / self.depth


@dataclass(frozen=True)
class PointFma:
    """A step of a register tile of a Winograd convolution's products, which begin one vector of 16 lanes in a cycle.

    It is not an `Fma`: it was fitted with the transforms beside it, on another processor (`machine.FMA_LANES`).
    """

    height: int
    vectors: int

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the step: products, loads, or the latency of a sum."""
        height, vectors = self.height, self.vectors
        begun = max(height * vectors, height / machine.LOADS_PER_CYCLE + vectors, machine.FMA_LATENCY)
        return begun * params.lanes / machine.FMA_LANES


@dataclass(frozen=True)
class AtPoints:
    """A unit beside a Winograd convolution's products, which counts in their cycle: that of a vector of 16 lanes.

    So it takes less of a processor with shorter vectors. With as much as in other kernels, divisions of a few
    convolutions are others (docs/cpu.md).
    """

    unit: Fixed

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the unit."""
        return self.unit.cycles(params) * params.lanes / machine.FMA_LANES


def _busy(multiplications: int, loads: int) -> float:
    return max(multiplications / machine.FMA_PER_CYCLE, loads / machine.LOADS_PER_CYCLE)


TILE_PRODUCT = Fixed(machine.TILE_PRODUCT)
"""A product of two tiles of AMX."""


@dataclass(frozen=True)
class CodedStep:
    """A step along the depth of a strip of rows and a panel of codes: codes become floats, and are multiplied.

    Attributes
    ----------
    height, vectors : int
        Rows of the strip, and vectors of columns in the panel.
    masked : bool
        A code takes a mask besides the conversion.
    """

    height: int
    vectors: int
    masked: bool

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the step."""
        unpacked = self.vectors * (machine.CODE_MASKED if self.masked else machine.CODE)
        return max(_busy(self.height * self.vectors, self.height) + unpacked, machine.FMA_LATENCY / 2)


@dataclass(frozen=True)
class QuadStep:
    """Four steps along the depth of a strip of rows and a panel of codes, in integers; attributes as of `CodedStep`."""

    height: int
    vectors: int
    masked: bool

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the four steps."""
        dots = has_dot(QUADS.name, params)
        instructions = 1 if dots else 2  # a product and a sum
        unpacked = self.vectors * (machine.CODE_MASKED if self.masked or not dots else 0.0)
        return max(_busy(instructions * self.height * self.vectors, self.height) + unpacked, machine.FMA_LATENCY / 2)


@dataclass(frozen=True)
class UntiledFma:
    """A vector of multiplications of a convolution whose register tile is not known, at its best."""

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the vector."""
        return machine.PLAIN_CONVOLUTION * params.lanes / machine.FMA_LANES


# -- operands and results --------------------------------------------------------------------------------------------

STRIDED = Fixed(machine.STRIDED_COPY)
"""An element that is copied by itself, between places that are strided and places that are not."""
ROUNDED = Fixed(machine.ROUND_COPY)
"""A contiguous element that is rounded to bfloat16 and copied."""
LINE = Fixed(machine.LINE_NEAR)
"""A cache line that a copy reads for one element."""
STORED_DOWN = Fixed(machine.STORE_DOWN)
"""An element of a tile's result whose rows are contiguous."""
SUMS = Fixed(machine.SLIDE_SUM)
"""A vector of sums that is stored, loaded again, and stored as a result."""
THIRD_LEVEL = Fixed(1 / machine.THIRD_LEVEL_RATE)
"""A byte from the third-level cache."""
LAST_LEVEL = Fixed(machine.LAST_LEVEL_BYTE)
"""A byte that another kernel has left in a shared cache."""
FAR_ROW = Fixed(machine.FAR_ROWS)
"""An element of rows that are too many for the second-level cache."""
FAR_WEIGHT = Fixed(machine.FAR_WEIGHT)
"""The same, of weights, where the right operand is copied meanwhile."""


@dataclass(frozen=True)
class Copied:
    """An element that is loaded and stored.

    Attributes
    ----------
    run : int
        Elements that are copied together, at most a vector of them.
    lines : float
        Cache lines that are read for an element.
    far : float
        From 0 to 1: how little of the operand stays in the caches.
    """

    run: int
    lines: float = 0.0
    far: float = 0.0

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of one element."""
        line = machine.LINE_NEAR + machine.LINE_FAR * self.far
        return machine.SCALAR_COPY / min(self.run, params.lanes) + self.lines * line


@dataclass(frozen=True)
class Fetched:
    """An element of the right operand that a task reads for the first time: from memory, or copied."""

    copied: Copied | None = None

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of one element."""
        return machine.FETCH if self.copied is None else max(machine.FETCH, self.copied.cycles(params))


@dataclass(frozen=True)
class Unasked:
    """A weight from memory that is read in place as the left operand, which no panel and no prefetch has asked for."""

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of one weight."""
        return machine.UNASKED if params.lanes > _NARROW else machine.UNASKED_NARROW


@dataclass(frozen=True)
class OtherLine:
    """A step along the depth of a left operand to another cache line.

    Attributes
    ----------
    level : int
        The level of the cache that holds the lines of a tile's steps: 1, 2, or 3 for what is behind the second one.
    page : bool
        The line is in another page of memory, too.
    """

    level: int
    page: bool

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of one step."""
        if params.lanes > _NARROW:
            return machine.OTHER_PAGE if self.page else machine.OTHER_LINE
        if self.level == 1 and self.page:
            return machine.OTHER_PAGE
        return machine.OTHER_LINE_NARROW[self.level - 1]


@dataclass(frozen=True)
class Transformed:
    """A vector of `lanes` elements of a tile that is transformed, and written behind the first-level cache if `far`."""

    lanes: int
    far: bool

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the vector."""
        written = self.lanes * machine.FLOAT_BYTES / machine.SPILL_RATE if self.far else 0.0
        return max(machine.TRANSFORM, written)


@dataclass(frozen=True)
class FromMemory:
    """A byte of weights that all cores together read from memory."""

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of one byte."""
        return 1 / params.memory_bytes


# -- threads and launches --------------------------------------------------------------------------------------------

WOKEN = Fixed(machine.WAKE)
"""A thread that is woken."""
WOKEN_AT_POINTS = AtPoints(Fixed(machine.WAKE_WINOGRAD))
"""A thread that is woken by a Winograd convolution."""
LAUNCH = Fixed(machine.LAUNCH)
"""A kernel that is launched."""
AMX_START = Fixed(machine.AMX_START)
"""A kernel that requests and configures the tile registers of AMX."""


# -- loops that are counted ------------------------------------------------------------------------------------------

ITERATION = Fixed(machine.ITERATION)
"""An iteration of a loop that is not unrolled."""
BRANCH = Fixed(machine.CONDITION_OF_ELEMENT)
"""A condition around statements."""


class Operations(NamedTuple):
    """The operations of an expression, on vectors or on elements.

    Attributes
    ----------
    plain : int
        Additions, multiplications and the like, and casts.
    divisions, functions, conditions : int
        Divisions and roots; exp, erf and the like; choices between two values.
    places : int
        Divisions of an index.
    """

    plain: int = 0
    divisions: int = 0
    functions: int = 0
    conditions: int = 0
    places: int = 0

    def __add__(self, other: Operations) -> Operations:
        """Return the operations of both."""
        return Operations(*map(add, self, other))

    def cycles_in(self, vectors: bool) -> float:
        """Return the cycles of all of them on a vector, or on an element."""
        function = machine.FUNCTION_OF_VECTOR if vectors else machine.FUNCTION_OF_ELEMENT
        condition = machine.CONDITION_OF_VECTOR if vectors else machine.CONDITION_OF_ELEMENT
        costly = self.divisions * machine.DIVISION + self.functions * function + self.conditions * condition
        return self.plain / machine.FMA_PER_CYCLE + costly + self.places


@dataclass(frozen=True)
class LoopStore:
    """A store in an iteration of an innermost loop, with its unrolled and vectorised loops.

    Attributes
    ----------
    times : int
        How often its operations run, on vectors or on elements.
    operations : Operations
        The operations of its value.
    in_vectors : bool
        They are of vectors.
    shuffles : int
        Shuffles that gather or scatter its vectors.
    loads, streamed : int
        Loads that stay the same from iteration to iteration, and loads that do not.
    sums : bool
        It adds to a sum in a register, and stores nothing.
    """

    times: int
    operations: Operations
    in_vectors: bool
    shuffles: int
    loads: int
    streamed: int
    sums: bool

    def cycles(self, params: CpuParams) -> float:
        """Return the longest of its operations, its loads and its stores."""
        works = self.times * self.operations.cycles_in(self.in_vectors) + self.shuffles * machine.SHUFFLE
        loaded = self.loads + self.streamed * (1 + machine.FAR_LOAD)
        return max(works, loaded / machine.LOADS_PER_CYCLE, 0.0 if self.sums else float(self.times))


@dataclass(frozen=True)
class Iteration:
    """An iteration of an innermost loop: its stores one after the other, or the latency of the sum before it."""

    stores: tuple[LoopStore, ...]

    def cycles(self, params: CpuParams) -> float:
        """Return the cycles of the iteration."""
        latency = machine.FMA_LATENCY if any(each.sums for each in self.stores) else 0.0
        return max(sum(each.cycles(params) for each in self.stores), latency)

# SPDX-License-Identifier: Apache-2.0
"""An operand of a GEMM as a function of fused indices: the values of a batch, outer index and term.

The outer index is a row of the left operand, or a column of the right one; terms are what a GEMM sums over.

Folded layout operators, padding, windows (im2col) and arithmetic are all inside the function. How a tile of it comes to
a micro-kernel is the choice of a staged operand: `prefetched_operand`, `gathered_operand`, `staged_operand`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tvm import DataType

from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ....target import Limits
from ...core.expressions import contiguous_run
from ...core.nest import fresh, index
from ..machine import SECTOR, VECTOR
from ..vectors import computed_types, guarded, places_of, vector_run


@dataclass(frozen=True, eq=False)
class Operand:
    """One operand as a function of fused indices.

    Attributes
    ----------
    value : callable
        ``(batch, outer, depth) -> expression``.
    batch, outer, depth : int
        Extents.
    """

    value: Callable
    batch: int
    outer: int
    depth: int

    @cached_property
    def sources(self) -> list:
        """Tensors that the operand reads."""
        return [load.source for load in loads(self.value(index(0), index(0), index(0)))]

    @cached_property
    def texels(self) -> int:
        """Columns of an image that one sector of memory has; 1 if the operand reads no image."""
        sizes = [TEXEL * DataType(str(image.dtype)).itemsize for image in self.sources if is_texture(image)]
        return max(1, SECTOR // min(sizes)) if sizes else 1

    def along(self, along_depth: bool) -> tuple:
        """Return (value at a fused index in that direction, its extent, extents of the other indices)."""
        b, other = fresh("b"), fresh("other")
        mine, others = (self.depth, self.outer) if along_depth else (self.outer, self.depth)
        at = (lambda k: self.value(b, other, k)) if along_depth else (lambda row: self.value(b, row, other))
        return at, mine, {b: self.batch, other: others}

    def most(self, limits: Limits) -> int:
        """Return the most elements of one load: a texel has four, a vector in a buffer 16 bytes."""
        if any(map(is_texture, self.sources)):
            return VECTOR
        computed = computed_types(self.value(index(0), index(0), index(0)))
        return max(VECTOR, limits.vector_of((str(buffer.dtype) for buffer in self.sources), computed))

    def run(self, along_depth: bool, most: int = VECTOR) -> int:
        """Return the elements of a vector load along the depth, or along the outer index; `most` at most.

        A vector may lie in the padding as a whole, but not in part.
        """
        value, extent, outer = self.along(along_depth)

        def condition(at):
            return guarded(value(at))[0]

        return vector_run(lambda at: places_of(guarded(value(at))[1]), extent, outer, most, condition)

    def closeness(self, along_depth: bool) -> tuple[int, int]:
        """Rank the coalescing of loads in that direction: (elements of a vector load, contiguous elements)."""
        value, extent, outer = self.along(along_depth)

        def place(number: int):
            def access(at):
                load = loads(value(at))[number]
                return load.source, load.indices

            return access

        count = len(loads(value(index(0))))
        runs = [contiguous_run(place(number), extent, outer, VECTOR) for number in range(count)]
        return self.run(along_depth), max(runs, default=1)

    def apart(self, along_depth: bool) -> int:
        """Return from how many tensors single elements come, if an element is chosen from one of several; else 0."""
        value, extent, outer = self.along(along_depth)
        if places_of(guarded(value(index(0)))[1]) is not None:
            return 0

        def run(number: int) -> int:
            def places(at):
                load = loads(value(at))[number]
                return [(load.source, tuple(load.indices))]

            return vector_run(places, extent, outer, VECTOR)

        return sum(run(number) == 1 for number in range(len(loads(value(index(0))))))

# SPDX-License-Identifier: Apache-2.0
"""The plan of a product of numbers rounded to bfloat16 on AMX, and its work."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import prod

from tvm import ir, tirx
from tvm_ffi import structural_equal

from ...analysis.row_chain import Product
from ...ir.half import is_exactly
from ...ir.kernel import Kernel
from ...ir.walk import loads
from ..core.contraction import Contraction, contraction_of
from ..core.expressions import Walk
from ..core.nest import fresh
from ..core.plans import Price
from ..core.reduction import Reduction, reduction_of
from .cost import AMX_START, LINE, ROUNDED, TILE_PRODUCT
from .gemm.amx import DEPTH, SIDE, bits_of, of_bits
from .gemm.amx_block import SPAN
from .gemm.amx_image import AmxImage, amx_image_of
from .gemm.chunks import Chunks
from .gemm.micro_kernels import BFLOAT16, FLOAT
from .matmul_plan import MatmulPlan
from .params import CpuParams
from .priced_work import Done, Rates, Threads, Work
from .tile import Tile

BLOCK = SIDE * DEPTH
# Steps along the depth, two tiles each. Chosen: 32 KiB stay in the first-level cache of processors with AMX, 48 KiB
# (benchmarks/machine_xeon.json).
_NEAR_STEPS = 16
_WIDE = 2 * SPAN  # elements of 16 bits: two cache lines, which are fetched together
# Bytes of copied operands that a task keeps in its second-level cache. Chosen: half of that of processors with AMX.
_KEPT_BYTES = 1024 * 1024


def round_operand(value):
    """Return a float32 value rounded to bfloat16 and widened again."""
    return value.astype(BFLOAT16).astype(FLOAT)


def before_bfloat16(value):
    """Return the operand of `round_operand`, or a widened bfloat16 load as it is; None if a value is neither.

    A value that is exactly a bfloat16, because it was stored as one, becomes the bits of it: a uint16.
    """
    if not (isinstance(value, tirx.Cast) and str(value.ty.dtype) == FLOAT and str(value.value.ty.dtype) == BFLOAT16):
        return None
    inner = value.value
    if isinstance(inner, tirx.Cast) and str(inner.value.ty.dtype) == FLOAT:
        read = loads(inner.value)
        if len(read) == 1 and str(read[0].ty.dtype) == "uint16" and structural_equal(inner.value, of_bits(read[0])):
            return read[0]
        return bits_of(inner.value) if is_exactly(inner.value, BFLOAT16) else inner.value
    return value if isinstance(inner, ir.TensorLoad) else None


def is_bfloat16(product: Product) -> bool:
    """Whether both operands of a product of a chain of rows are rounded to bfloat16."""
    return before_bfloat16(product.left) is not None and before_bfloat16(product.right) is not None


def plain_contraction(kernel: Kernel) -> Contraction | None:
    """Return the contraction in a prepared kernel, with rows, columns and float32 sums; None if there is none."""
    reduction = reduction_of(kernel)
    contraction = contraction_of(reduction) if reduction is not None else None
    if contraction is None or not (contraction.rows and contraction.columns and contraction.depth):
        return None
    return contraction if str(contraction.reduction.accumulator.ty.dtype) == FLOAT else None


class Bfloat16Plan(MatmulPlan):
    """A contraction whose operands are rounded to bfloat16; `contraction` holds them before rounding."""

    @classmethod
    def of(cls, kernel: Kernel, params: CpuParams) -> Bfloat16Plan | None:
        """Return the plan of a prepared kernel, or None if it multiplies no rounded numbers."""
        contraction = plain_contraction(kernel)
        if contraction is None:
            return None
        left, right = before_bfloat16(contraction.left), before_bfloat16(contraction.right)
        if left is None or right is None:
            return None
        return cls(replace(contraction, left=left, right=right), params)

    @property
    def reduction(self) -> Reduction:
        """The sum with its epilogue."""
        return self.contraction.reduction

    # -- storage of operands ---------------------------------------------------------------------------------------

    @cached_property
    def left_in_blocks(self) -> bool:
        """Whether the left operand is stored in tiles already (`RoundProducts`)."""
        b, q, i, t, k = map(fresh, "bqitk")
        value = self.left(b, q * SIDE + i, t * DEPTH + k)
        return self._in_blocks(value, b, q, t, {i: (DEPTH, SIDE), k: (1, DEPTH)}, self.rows)

    @cached_property
    def right_in_blocks(self) -> bool:
        """Whether the right operand is stored in tiles already."""
        b, q, j, t, k, p = map(fresh, "bqjtkp")
        value = self.right(b, q * SIDE + j, t * DEPTH + k * 2 + p)
        inner = {k: (DEPTH, SIDE), j: (2, SIDE), p: (1, 2)}
        return self._in_blocks(value, b, q, t, inner, self.columns)

    @property
    def left_stays(self) -> bool:
        """Whether the rows stay the same in the inner loop over blocks, which then reads the copied right operand."""
        return self.left_in_blocks and not self.right_in_blocks

    def _in_blocks(self, value, batch, place, step, inner: dict, length: int) -> bool:
        load = value.value if isinstance(value, tirx.Cast) else value
        if not isinstance(load, ir.TensorLoad) or str(load.ty.dtype) != BFLOAT16:
            return False
        shape = [int(each) for each in load.source.shape]
        if len(shape) != 5 or shape[3:] != [SIDE, DEPTH]:
            return False
        extents = {batch: self.batch, place: -(-length // SIDE), step: self.steps}
        walk = Walk({**extents, **{var: extent for var, (_, extent) in inner.items()}})
        wanted = {place: shape[2] * BLOCK, step: BLOCK, **{var: stride for var, (stride, _) in inner.items()}}
        return all(walk.load_stride(load, var) == stride for var, stride in wanted.items() if walk.extents[var] > 1)

    @cached_property
    def image(self) -> AmxImage | None:
        """The image from which tiles of the right operand are loaded, if the left one is in the order of its taps."""
        found = amx_image_of(self.contraction) if self.left_in_blocks else None
        if found is None or found.width > found.image.sizes[1]:
            return None
        innermost = self.contraction.depth[-1]
        whole = self.reduction.extents[innermost] == found.channels
        return found if whole and innermost.same_as(found.channel) else None

    # -- sizes and costs -------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of tiles along the depth."""
        return -(-self.depth // DEPTH)

    @property
    def depth_parts(self) -> int:
        """Number of parts of the depth; a part of the operand that stays fits in the first-level cache."""
        return -(-self.steps // _NEAR_STEPS)

    @cached_property
    def tile(self) -> Tile:
        """Rows and columns of a block of results."""
        return Tile(SPAN, self.column_span)

    left_shared = False  # each task copies its own tiles

    @property
    def column_span(self) -> int:
        """Columns that are copied, and stored, together: adjacent cache lines arrive faster."""
        if self.image is not None:
            return self.image.unit
        return _WIDE if self.left_stays and self.copies_steps else SPAN

    @property
    def copies_steps(self) -> bool:
        """Whether the right operand can be copied one step of 32 along the depth after the other."""
        return len(self.contraction.depth) == 1 and self.depth % DEPTH == 0

    @cached_property
    def parts(self) -> tuple[int, int]:
        """Number of chunks of rows and of columns that is predicted to finish first."""
        wanted = self.params.tasks if self.parallel else 1
        spans = [max(1, self.rows // SPAN), max(1, self.columns // self.column_span)]
        right = self.image.elements(self.columns) if self.image else self.columns * self.steps * DEPTH
        copied = (
            0 if self.left_in_blocks else self.rows * self.steps * DEPTH,
            0 if self.right_in_blocks else right,
        )
        least = [max(1, -(-elements * 2 // _KEPT_BYTES)) for elements in copied]
        most = [min(span, max(few, wanted)) for span, few in zip(spans, least)]
        pairs = [
            (rows, columns)
            for rows in range(min(least[0], most[0]), most[0] + 1)
            for columns in range(min(least[1], most[1]), most[1] + 1)
            if rows * columns * self.batch <= 2 * wanted or (rows, columns) == (least[0], least[1])
        ]
        rates, threads = Rates(self.params), Threads(self.params.cores if self.parallel else 1)

        def last(pair: tuple[int, int]) -> tuple:
            rows, columns = -(-self.rows // pair[0]), -(-self.columns // pair[1])
            task = self._products(rows, columns), *self._copies(rows, columns)
            return rates.until_last_of(threads, self.batch * prod(pair), task), pair

        return min(pairs or [tuple(map(min, least, most))], key=last)

    @property
    def price(self) -> Price:
        """The price of the whole product, of all threads together."""
        sizes = self.rows, self.columns
        parts = {
            "requesting AMX": [(1, AMX_START)],
            "products of tiles": [self._products(*sizes, self.batch)],
            "copies of operands": self._copies(*sizes, self.batch),
        }
        return Work(self.params, parts, shared=self.params.cores if self.parallel else 1).price

    def _products(self, rows: int, columns: int, batch: int = 1) -> Done:
        """Return the products of tiles for some results."""
        across = self.image.tiles_of(columns) if self.image is not None else -(-columns // SIDE)
        return batch * -(-rows // SIDE) * across * self.steps, TILE_PRODUCT

    def _copies(self, rows: int, columns: int, batch: int = 1) -> list[Done]:
        """Return the elements of operands that are not in tiles; gathered ones are each in a line of their own."""
        if self.image is not None:
            number, unit = self.image.copies(columns)
            return [(batch * number, unit)]
        left = 0 if self.left_in_blocks else batch * rows * self.depth
        right = 0 if self.right_in_blocks else batch * columns * self.depth
        gathered = right if self.right_run(SIDE) < SIDE else 0
        return [(left + 2 * right, ROUNDED), (gathered, LINE)]

    @cached_property
    def row_chunks(self) -> Chunks:
        """Rows of each task, in blocks of results."""
        return Chunks.of(self.rows // SPAN, self.parts[0])

    @cached_property
    def panel_chunks(self) -> Chunks:
        """Columns of each task, in units of `column_span`."""
        return Chunks.of(self.columns // self.column_span, self.parts[1])

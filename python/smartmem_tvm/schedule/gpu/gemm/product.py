# SPDX-License-Identifier: Apache-2.0
"""A contraction as a GEMM or batched GEMM: batch, rows, columns and depth are one fused index each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx

from ....ir.byte_numbers import byte_type
from ....ir.half import FLOAT, HALF
from ....ir.kernel import Kernel, substitute
from ....ir.pairs import INTEGER
from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ...core.contraction import contraction_of
from ...core.fused_contraction import FusedContraction
from ...core.nest import fresh, index
from ...core.reduction import Reduction, reduction_of
from ..sums import product_type
from ..vectors import places_of, vector_run
from .operand import Operand
from .unpacking import unpacked


@dataclass(frozen=True, eq=False)
class MatmulProduct(FusedContraction):
    """A contraction whose batch, rows, columns and depth are one fused index each, and its operands."""

    @property
    def reduction(self) -> Reduction:
        """The reduction and its epilogue."""
        return self.contraction.reduction

    @property
    def factor(self) -> str:
        """The type that holds and multiplies operands."""
        return product_type(self.contraction)

    @property
    def words(self) -> Mapping:
        """See `Contraction.words`; they are those of operands in quads (`byte_product`)."""
        return {}

    add = None
    """Statement that adds a product to a sum, ``(sums, at, left, right)``; None for a multiplication."""

    @cached_property
    def left(self) -> Operand:
        """The left operand; its outer index is the row."""
        value = unpacked(self.contraction.left)
        return Operand(lambda b, i, k: substitute(value, self.point(b, i, None, k)), self.batch, self.rows, self.depth)

    @cached_property
    def right(self) -> Operand:
        """The right operand; its outer index is the column."""
        value = unpacked(self.contraction.right)
        return Operand(
            lambda b, j, k: substitute(value, self.point(b, None, j, k)), self.batch, self.columns, self.depth
        )

    def result(self, value, batch, row, column) -> tirx.Stmt:
        """Store the finished result of a point."""
        return self.reduction.store(value, self.point(batch, row, column))

    @property
    def finishes_texels(self) -> bool:
        """Whether results are written to an image, or the epilogue reads one."""
        unknown, zero = tirx.Var("sum", self.reduction.accumulator.ty.dtype), index(0)
        stored = self.result(unknown, zero, zero, zero)
        return is_texture(stored.buffer) or any(is_texture(load.source) for load in loads(stored.value))

    def result_run(self, most: int) -> int:
        """Return the columns whose results are finished and stored as one vector; a whole texel for a texture."""
        if is_texture(self.reduction.output):
            return TEXEL
        b, i = fresh("b"), fresh("i")
        unknown = tirx.Var("sum", self.reduction.accumulator.ty.dtype)

        def access(j):
            stored = self.result(unknown, b, i, j)
            read = places_of(stored.value)
            return None if read is None else [(stored.buffer, tuple(stored.indices)), *read]

        return vector_run(access, self.columns, {b: self.batch, i: self.rows}, most)


def product_of(kernel: Kernel) -> MatmulProduct | None:
    """Return the product in a kernel; None if it is none of floats or of bytes, or has no rows or no columns."""
    reduction = reduction_of(kernel)
    contraction = contraction_of(reduction) if reduction is not None else None
    if contraction is None or not contraction.rows or not contraction.columns:
        return None
    sides = (contraction.left, contraction.right)
    types, sums = {str(each.ty.dtype) for each in sides}, str(contraction.reduction.accumulator.ty.dtype)
    if sums == INTEGER:
        return MatmulProduct(contraction) if all(map(byte_type, sides)) else None
    return MatmulProduct(contraction) if sums == FLOAT and types in ({FLOAT}, {HALF}) else None

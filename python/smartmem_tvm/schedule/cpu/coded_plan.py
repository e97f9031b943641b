# SPDX-License-Identifier: Apache-2.0
"""The plan of a product of few rows and a weight in codes: its panels, strips of rows, and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from ...ir.codes import BYTE, BYTES_IN_WORD, FOUR, IN_WORD, codes_of
from ...ir.packings import QUADS
from ..core.coded_panels import Panels, group_of, panels_of
from ..core.contraction import Contraction
from ..core.expressions import largest_divisor
from ..core.nest import fresh
from ..core.plans import Price
from .cost import CodedStep, FromMemory, QuadStep
from .gemm.axis import Span
from .gemm.chunks import Chunks
from .matmul_operands import ContractionOperands
from .packed_vectors import has_byte_products, has_dot
from .params import FEW_REGISTERS, CpuParams
from .priced_work import Done, Work

VECTORS = 4
"""Vectors of columns in a panel. Two and three took 1.17 times as long (AMD Zen 2 with AVX2, 2026-11-28)."""
LONG = 64
"""Most steps along the depth between which sums of codes stay in registers. Chosen: the zero point's share, which is
subtracted then, has grown little, and what happens between takes a twentieth of the time."""
LONG_INTEGERS = 512
"""The same for sums of integers, which are exact. Chosen: 512 products of bytes are far from 32 bits."""
_CHAINS, _CHAINS_FEW_REGISTERS = 8, 4
"""Sums that are added to at the same time, with 32 registers and with 16. Eight are by definition of two
multiplications per cycle that take four cycles; with 16 registers four sums took 0.87 times as long, as no mask is
spilled (AMD Zen 2 with AVX2, 768 x 2048 and 2048 x 768, one thread, 2026-11-28)."""
_ROWS, _ROWS_FEW_REGISTERS = 4, 2
"""Rows of a strip: as many sums as registers hold beside the codes, by definition of 32 and of 16 registers."""
_HIGH_VECTORS, _HIGH_ROWS = 2, 12
"""Vectors of columns, and rows, of a tile of more than `_ROWS` rows with 32 registers: a vector of codes is unpacked
once for all rows of a strip. By definition of 32 registers: 24 sums, two vectors of codes, and what they come from."""


@dataclass(frozen=True, eq=False)
class CodedPlan(ContractionOperands):
    """A contraction whose right operand is a weight in panels."""

    panels: Panels = None

    @classmethod
    def of(cls, contraction: Contraction, params: CpuParams) -> CodedPlan | None:
        """Return the plan of a contraction, or None if its right operand is no weight in panels."""
        if contraction.batch or not contraction.columns:
            return None
        panels = panels_of(contraction.right)
        plan = None if panels is None else cls(contraction, params, (), panels)
        reads = plan is not None and panels.read_by(lambda column, depth: plan.right(None, column, depth))
        alone = reads and (panels.bits == FOUR or panels.in_word == 1 or plan.row_group is not None)
        return plan if alone else None

    # -- rows in codes -----------------------------------------------------------------------------------------------

    @cached_property
    def row_group(self) -> int | None:
        """Steps along the depth that share a scale of a row, where rows are in codes that are multiplied as integers.

        None where products are of floats.
        """
        row, step = fresh("row"), fresh("step")
        codes = codes_of(self.left(None, row, step)) if codes_of(self.contraction.left) is not None else None
        if codes is None or not codes.value.same_as(codes.load) or str(codes.load.ty.dtype) != BYTE:
            return None
        if self.panels.in_word == 1 or not has_byte_products(self.params):
            return None
        return group_of(codes.scale, step, self.depth)

    # -- the depth ---------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps along the depth, with those that only pad."""
        return self.panels.groups * self.panels.group

    @cached_property
    def block(self) -> int:
        """Steps after which the sums of codes are scaled: a group, or a part of one."""
        if self.row_group is None:
            return largest_divisor(self.panels.group // IN_WORD, LONG // IN_WORD) * IN_WORD
        common = self.panels.group if self.row_group == self.depth else gcd(self.panels.group, self.row_group)
        return largest_divisor(common // IN_WORD, LONG_INTEGERS // IN_WORD) * IN_WORD

    # -- rows and columns --------------------------------------------------------------------------------------------

    @property
    def vectors(self) -> int:
        """Vectors of columns in a panel."""
        return self.panels.width // self.params.lanes

    @property
    def few_registers(self) -> bool:
        """Whether the processor has no more registers than AVX2."""
        return self.params.registers <= FEW_REGISTERS

    @property
    def tile_vectors(self) -> int:
        """Vectors of columns of a tile: a panel's, or fewer where a strip has many rows."""
        halved = self.row_group is not None and not has_dot(QUADS.name, self.params) and self.panels.bits != FOUR
        least = _ROWS if not self.few_registers else 1 if halved else self.rows
        high = self.rows > least and self.vectors % _HIGH_VECTORS == 0
        return _HIGH_VECTORS if high else self.vectors

    @property
    def tile_width(self) -> int:
        """Columns of a tile."""
        return self.tile_vectors * self.params.lanes

    @cached_property
    def strips(self) -> list[Span]:
        """The rows in strips, as equal as possible, the higher ones first."""
        most = _ROWS_FEW_REGISTERS if self.few_registers else _ROWS if self.tile_vectors == self.vectors else _HIGH_ROWS
        count = -(-self.rows // most)
        low, more = divmod(self.rows, count)
        spans = [Span(0, more, low + 1), Span(more * (low + 1), count - more, low)]
        return [each for each in spans if each.count]

    def sums(self, rows: int) -> int:
        """Return the sums of a strip for each result, to which the steps are added in turn."""
        chains = _CHAINS_FEW_REGISTERS if self.few_registers else _CHAINS
        return max(1, min(IN_WORD, chains // (rows * self.tile_vectors)))

    @cached_property
    def parallel(self) -> bool:
        """Whether the work is large enough to wake the threads."""
        return self.contraction.reduction.work >= self.params.serial_below

    @cached_property
    def chunks(self) -> Chunks:
        """Panels of full width per task; the last task also has the columns that remain."""
        return Chunks.of(self.columns // self.panels.width, self.params.cores if self.parallel else 1)

    # -- the model of time -------------------------------------------------------------------------------------------

    @property
    def price(self) -> Price:
        """The price of the work by its terms, in cycles of all threads together."""
        tiles, masked = self.panels.panels * (self.vectors // self.tile_vectors), self.panels.bits == FOUR
        if self.row_group is None:
            done = self.steps, lambda rows: CodedStep(rows, self.tile_vectors, masked)
        else:
            done = self.steps // BYTES_IN_WORD, lambda rows: QuadStep(rows, self.tile_vectors, masked)
        count, step = done
        steps: Sequence[Done] = [(span.count * tiles * count, step(span.size)) for span in self.strips]
        parts = {"codes and multiply-adds": steps, "weights from memory": [(self.panels.bytes, FromMemory())]}
        return Work(self.params, parts, shared=self.params.cores if self.parallel else 1).price

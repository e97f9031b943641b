# SPDX-License-Identifier: Apache-2.0
"""How the operands and the results of a contraction lie in memory, which decides what is read in place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import gcd, prod

from tvm import ir, sym, tirx

from ...ir.blends import branches
from ...ir.index_map import variables
from ...ir.kernel import substitute
from ...ir.walk import loads
from ..core.expressions import Walk, choices, chooses_along, contiguous_run, fused_index, intervals, uses
from ..core.fused_contraction import FusedContraction
from ..core.nest import fresh
from . import machine
from .params import CpuParams

# Steps along the depth in one cache line, for windows to be read in place. Chosen: no times of others were kept
# (2026-11-26).
_LEAST_IN_LINE = 3


@dataclass(frozen=True, eq=False)
class ContractionOperands(FusedContraction):
    """A contraction with fused batch, row, column and depth indices, and the places of its operands.

    Attributes
    ----------
    constants : tuple of buffer
        Inputs whose values are known at compile time.
    """

    params: CpuParams
    constants: tuple = ()

    # -- the program at a point --------------------------------------------------------------------------------------

    def left(self, batch, row, depth):
        """Return the left operand at a point."""
        return substitute(self.contraction.left, self.point(batch, row, None, depth))

    def right(self, batch, column, depth):
        """Return the right operand at a point."""
        operand, dim = self.contraction.right, self._fused_dimension
        value = substitute(operand, self.point(batch, None, column, depth))
        if dim is None:
            return value
        return tirx.BufferLoad(operand.source, [depth if n == dim else at for n, at in enumerate(value.indices)])

    @cached_property
    def _fused_dimension(self) -> int | None:
        """The dimension of the right operand that is the fused depth, as in panels; its index needs no division."""
        right, depth = self.contraction.right, self.contraction.depth
        if not isinstance(right, ir.TensorLoad) or len(depth) < 2:
            return None
        fused, analyzer = fused_index(depth, self.contraction.reduction.extents), sym.Analyzer()
        found = (n for n, at in enumerate(right.indices) if analyzer.can_prove_equal(at, fused))
        return next(found, None)

    # -- the left operand --------------------------------------------------------------------------------------------

    @cached_property
    def left_packed(self) -> bool:
        """Whether the left operand is copied: unless it is a plain load with an address per row plus one per step.

        A value behind a select is cheap to compute once, but expensive to compute again for each panel.
        """
        return not (self._left_walks or self._left_lies_apart)

    @cached_property
    def left_in_place(self) -> bool:
        """Whether each row of a tile has an address of its own, from which the offsets of the depth are the same."""
        return not self.left_packed and not self._left_walks

    @cached_property
    def _left_walks(self) -> bool:
        """Whether the left operand is a load with constant strides along the fused rows and depth."""
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk, value = Walk({b: self.batch, m: self.rows, k: self.depth}), self.left(b, m, k)
        return all(walk.load_stride(value, v) is not None for v in (m, k))

    @cached_property
    def _left_lies_apart(self) -> bool:
        """Whether an element's address is that of its row plus an offset that all rows share: windows of an image."""
        steps = self._left_steps
        if steps is None or None in steps.values() or self.steps_in_a_line < _LEAST_IN_LINE:
            return False
        # Each panel reads these distant lines again, so those of a row have to stay in the cache.
        whole = self.steps_in_a_line * machine.FLOAT_BYTES >= machine.LINE_BYTES
        return whole or self.depth // self.steps_in_a_line * machine.LINE_BYTES <= machine.NEAR_LINES_BYTES

    @cached_property
    def left_step(self) -> int | None:
        """Stride, in elements, of the left operand along the fused depth; None if it varies."""
        b, m, k = fresh("b"), fresh("m"), fresh("k")
        walk = Walk({b: self.batch, m: self.rows, k: self.depth})
        return walk.load_stride(self.left(b, m, k), k)

    @cached_property
    def left_run(self) -> int:
        """Steps of the innermost depth iterator along which all loads of the left operand are contiguous or constant.

        For joined tensors they are those of the smallest one. The result is 1 if there are none.
        """
        left, extents = self.contraction.left, self.contraction.reduction.extents
        walk, inner = Walk(extents), self.contraction.depth[-1:]
        if not inner or any(walk.load_stride(each, inner[0]) not in (0, 1) for each in loads(left)):
            return 1
        parts = intervals(left, inner[0], extents)
        joined = len(parts) > 1 and all(variables(condition) == [*inner] for condition, _, _ in choices(left))
        return min(length for _, length in parts) if joined or not branches(left) else 1

    @cached_property
    def _left_steps(self) -> dict | None:
        """Strides, in elements, of the left operand along the iterators of the depth; None if it is no load."""
        left, walk = self.contraction.left, Walk(self.contraction.reduction.extents)
        if not isinstance(left, ir.TensorLoad):
            return None
        return {var: walk.load_stride(left, var) for var in self.contraction.depth}

    @cached_property
    def steps_in_a_line(self) -> int:
        """Steps along the depth in the same cache line of the left operand, for windows that are read in place."""
        line = machine.LINE_BYTES // machine.FLOAT_BYTES
        steps, extents = self._left_steps, self.contraction.reduction.extents
        return min(line, prod(extents[var] for var, step in steps.items() if abs(step) < line))

    # -- the right operand -------------------------------------------------------------------------------------------

    @property
    def right_constant(self) -> bool:
        """Whether the right operand is read from one of the constants."""
        return self.is_constant(self.contraction.right)

    def is_constant(self, operand) -> bool:
        """Whether an operand is read from one of the constants."""
        return isinstance(operand, ir.TensorLoad) and any(operand.source.same_as(each) for each in self.constants)

    @cache  # noqa: B019 - a plan lives as long as its rule runs
    def right_step_of(self, width: int) -> int | None:
        """Return the elements between two rows of a panel of some width; None if its rows are not contiguous."""
        b, q, j, k = fresh("b"), fresh("q"), fresh("j"), fresh("k")
        walk = Walk({b: self.batch, q: max(1, self.columns // width), j: width, k: self.depth})
        value = self.right(b, q * width + j, k)
        return walk.load_stride(value, k) if walk.load_stride(value, j) == 1 else None

    @cache  # noqa: B019 - a plan lives as long as its rule runs
    def right_run(self, width: int) -> int:
        """Return the columns that are contiguous in all loads of the right operand, wherever a panel starts."""
        if chooses_along(self.contraction.right, self.contraction.columns):
            return 1
        b, k, j = fresh("b"), fresh("k"), fresh("j")
        moving = [n for n, each in enumerate(loads(self.right(b, j, k))) if uses(each, [j])]
        outer = {b: self.batch, k: self.depth}

        def run(number: int) -> int:
            def access(column):
                load = loads(self.right(b, column, k))[number]
                return load.source, load.indices

            return contiguous_run(access, self.columns, outer, width)

        return gcd(*map(run, moving)) if moving else 1

    # -- results -----------------------------------------------------------------------------------------------------

    def output_run(self, along_rows: bool, most: int) -> int:
        """Return the results that are contiguous in memory down the rows (or along the columns) of a tile."""
        b, other, reduction = fresh("b"), fresh("other"), self.contraction.reduction
        extents = {b: self.batch, other: self.columns if along_rows else self.rows}

        def access(at):
            point = self.point(b, at, other) if along_rows else self.point(b, other, at)
            return reduction.output, [substitute(i, point) for i in reduction.indices]

        return contiguous_run(access, self.rows if along_rows else self.columns, extents, most)

    @cached_property
    def stores_down(self) -> bool:
        """Whether the result is contiguous down the rows, and not along the columns."""
        return self.output_run(False, self.params.lanes) == 1 and self.output_run(True, 4) > 1

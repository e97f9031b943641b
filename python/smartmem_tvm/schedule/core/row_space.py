# SPDX-License-Identifier: Apache-2.0
"""The rows that all stages of a kernel share; its reductions run within a row.

    sum[i, j] += x[i, j, k];  out[i, k, j] = x[i, j, k] / sum[i, j]        rows (i, j), inner k

Within a row, a stage may read values through any index map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from ...ir.axes import SharedRows, shared_rows, without_unit_iterators
from ...ir.kernel import Kernel, Opaque
from .reduction import combiner_of


@dataclass(frozen=True, eq=False)
class RowSpace(SharedRows):
    """The rows of a kernel: the spatial axes of its last reduction."""

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Extent of each shared axis."""
        stage = self.kernel.stages[0]
        return tuple(stage.extents[v] for v in self.rows_of(stage))

    @cached_property
    def _inner_dimensions(self) -> dict:
        inner = {
            stage.body.buffer: [n for n, i in enumerate(stage.body.indices) if self.axis(stage, i) not in self.shared]
            for stage in self.kernel.stages
        }
        return {buffer: inner[buffer] for buffer in self.kernel.intermediates}

    def inner_axes(self, buffer) -> list[int] | None:
        """Return the dimensions of a row-sized copy of `buffer`, or None if it is no intermediate."""
        return self._inner_dimensions.get(buffer)

    @property
    def work(self) -> int:
        """Number of points of all stages."""
        return sum(prod(stage.extents.values()) for stage in self.kernel.stages)


def row_space_of(kernel: Kernel) -> RowSpace | None:
    """Return the rows that all stages share, or None if some stage crosses them."""
    kernel = without_unit_iterators(kernel)
    reductions = [stage for stage in kernel.stages if stage.reduction]
    if not reductions or any(combiner_of(stage) is None for stage in reductions):
        return None
    try:
        found = shared_rows(kernel, reductions[-1])
    except Opaque:
        return None
    return RowSpace(found.kernel, found.axes, found.shared)

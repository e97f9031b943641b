# SPDX-License-Identifier: Apache-2.0
"""A contraction as a batch of GEMMs: each group of its iterators as one index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .contraction import Contraction
from .expressions import split_index


@dataclass(frozen=True, eq=False)
class FusedContraction:
    """A contraction with its batch, rows, columns and depth each as one fused index."""

    contraction: Contraction

    @cached_property
    def batch(self) -> int:
        """Number of independent GEMMs."""
        return self.contraction.extent(self.contraction.batch)

    @cached_property
    def rows(self) -> int:
        """Fused row extent."""
        return self.contraction.extent(self.contraction.rows)

    @cached_property
    def columns(self) -> int:
        """Fused column extent."""
        return self.contraction.extent(self.contraction.columns)

    @cached_property
    def depth(self) -> int:
        """Fused reduction extent."""
        return self.contraction.extent(self.contraction.depth)

    def point(self, batch=None, row=None, column=None, depth=None) -> dict:
        """Return the iterator values of fused indices; None leaves a group out."""
        c, point = self.contraction, {}
        for vars_, flat in ((c.batch, batch), (c.rows, row), (c.columns, column), (c.depth, depth)):
            if flat is not None:
                point.update(split_index(flat, vars_, c.reduction.extents))
        return point

# SPDX-License-Identifier: Apache-2.0
"""Recognise kernels that work row by row through a chain of stages: attention, and small stacks of layers.

    s[b, i, j] += q[b, i, k] * x[b, j, k];  m[b, i] max= s[b, i, j];  ...;  o[b, i, d] += p[b, i, j] * v[b, j, d]

    rows i, batch b;  s and o are products (of rows with a matrix that all rows of a batch share), m is a statistic

The recogniser does not depend on operators. Iterators of different stages are one *axis* if an intermediate buffer is
written along one and read along the other. A *row* axis is a spatial iterator of every stage; if the matrix of a
product depends on it, it is a *batch* axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx

from ..ir.axes import SharedRows, axes_of, without_unit_iterators
from ..ir.half import HALF
from ..ir.index_map import variables
from ..ir.kernel import Kernel, Opaque, Stage
from ..ir.walk import loads


@dataclass(frozen=True, eq=False)
class Product:
    """A stage ``sum over depth of left(row, depth) * right(depth, column)``."""

    columns: tuple
    left: object
    right: object


@dataclass(frozen=True, eq=False)
class RowChain(SharedRows):
    """The rows of a kernel and the products in it.

    Attributes
    ----------
    extents : dict
        Extent of each axis.
    batch : tuple of int
        The shared axes that select the matrices of the products.
    products : dict
        The stages that are products.
    """

    extents: dict
    batch: tuple[int, ...]
    products: dict

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Shared axes along which the matrices do not change."""
        return tuple(a for a in self.shared if a not in self.batch)

    def width(self, stage: Stage) -> int:
        """Return the number of values that a stage computes per row."""
        return math.prod(stage.extents[v] for v in self.inner(stage))

    @property
    def statistics(self) -> list[Stage]:
        """Reductions that are no products."""
        return [s for s in self.kernel.stages if s.reduction and s not in self.products]

    @property
    def row_count(self) -> int:
        """Number of rows that share their matrices."""
        return math.prod(self.extents[a] for a in self.rows)

    @property
    def batch_count(self) -> int:
        """Number of sets of matrices."""
        return math.prod(self.extents[a] for a in self.batch)

    @property
    def widest(self) -> int:
        """The most values of a row that one stage passes to another."""
        return max((self.width(s) for s in self.kernel.stages[:-1]), default=1)

    @property
    def matrix_size(self) -> int:
        """Number of elements of the matrices of all products, for one batch."""
        return sum(math.prod(s.extents[v] for v in (*p.columns, *s.reduction)) for s, p in self.products.items())


def row_chain_of(kernel: Kernel) -> RowChain:
    """Return the chain of rows in a kernel.

    Raises
    ------
    Opaque
        If some stage reads outside its row, or the kernel computes a product's matrix itself.
    """
    kernel = without_unit_iterators(kernel)
    axes, extents = axes_of(kernel)
    spatial = [{axes[s][v] for v in s.spatial} for s in kernel.stages]
    shared = set.intersection(*spatial)
    _check_rows(kernel, axes, shared)
    products, batch = {}, set()
    for stage in kernel.stages:
        columns = tuple(v for v in stage.spatial if axes[stage][v] not in shared)
        product = product_of(stage, columns)
        if product is not None:
            products[stage] = product
            batch |= {axes[stage][v] for v in variables(product.right) if axes[stage].get(v) in shared}
    for stage, product in products.items():
        if any(axes[stage].get(v) in shared - batch for v in variables(product.right)):
            raise Opaque("a matrix differs from row to row")
        if any(load.source in kernel.intermediates for load in loads(product.right)):
            raise Opaque("a matrix is computed in the kernel itself")
    first = kernel.stages[0]
    in_order = tuple(axes[first][v] for v in first.spatial if axes[first][v] in shared)
    return RowChain(kernel, axes, in_order, extents, tuple(a for a in in_order if a in batch), products)


def _check_rows(kernel: Kernel, axes: dict, shared: set) -> None:
    """Check that no stage reduces along a row axis; links already make each stage read the row that was written."""
    for stage in kernel.stages:
        if any(axes[stage][v] in shared for v in stage.reduction):
            raise Opaque(f"stage {stage.name} reduces along the rows")


def product_of(stage: Stage, columns: tuple) -> Product | None:
    """Return the product that a stage computes, else None; `columns` are its spatial iterators that are no rows."""
    term = summand(stage)
    if term is None or not columns or stage.init is None:
        return None
    right = [f for f in factors(term) if any(v in columns for v in variables(f))]
    left = [f for f in factors(term) if not any(v in columns for v in variables(f))]
    if len(right) != 1 or not any(loads(f) for f in left):
        return None
    return Product(columns, math.prod(left[1:], start=left[0]), right[0])


def summand(stage: Stage):
    """Return ``t`` of a stage ``acc = acc + t``, None for any other stage."""
    body = stage.body
    if not stage.reduction or not isinstance(body, tirx.BufferStore) or not isinstance(body.value, tirx.Add):
        return None
    for own, term in ((body.value.a, body.value.b), (body.value.b, body.value.a)):
        if isinstance(own, ir.TensorLoad) and own.source.same_as(body.buffer):
            return None if any(load.source.same_as(body.buffer) for load in loads(term)) else term
    return None


def factors(term) -> list:
    """Return the factors of a product; a product of float16 factors may be cast as a whole to the type of its sum."""
    halves = isinstance(term, tirx.Cast) and str(term.value.ty.dtype) == HALF and isinstance(term.value, tirx.Mul)
    return _multiplied(term.value if halves else term)


def _multiplied(term) -> list:
    return [*_multiplied(term.a), *_multiplied(term.b)] if isinstance(term, tirx.Mul) else [term]

# SPDX-License-Identifier: Apache-2.0
"""Recognise a GEMM in a reduction: sort iterators into batch, rows, columns and depth by the operands that use them.

    C[b, h, w, c] = sum_k A[(b*7 + h)*7 + w, k] * B[k, c]      rows b, h, w   columns c   depth k
    C[n, f, y, x] = sum_{i,p,q} D[n, i, y+p, x+q] * W[f, i, p, q]   rows f   columns n, y, x   depth i, p, q
    C[n, f, y, x] = sum_{i,p,q} D[n, f//4*4 + i, y+p, x+q] * W[f, i, p, q]   batch f//4   rows f%4   (grouped)

The columns are the side that holds the iterator along which the result is contiguous in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import tvm_ffi
from tvm import tirx

from ...analysis.row_chain import factors
from ...ir.kernel import substitute
from ...ir.packings import Packing, packed_factors
from ...ir.recent import Recent
from ...ir.strength_reduction import Simplifier
from .expressions import memory_order, uses
from .nest import current_index_type, fresh, index
from .reduction import Reduction

# Several rules in turn match the same kernel.
_contractions, _split = Recent(64), Recent(64)


@dataclass(frozen=True, eq=False)
class Contraction:
    """``sum over depth of left(batch, rows, depth) * right(batch, columns, depth)``, finished by `reduction`.

    Attributes
    ----------
    packing : Packing or None
        Operands hold several small integers (`ir.packings`), and one multiplication is their dot product.
    words : mapping
        Tensors that operands load and that do not exist -> the tensors of bytes in their place (`core.words`).
    """

    reduction: Reduction
    batch: tuple
    rows: tuple
    columns: tuple
    left: object
    right: object
    packing: Packing | None = None
    words: Mapping = field(default_factory=dict)

    def times(self, left, right):
        """Return one product of the sum."""
        return left * right if self.packing is None else self.packing.dot(left, right)

    def swapped(self) -> Contraction:
        """Return the same sum with rows and columns exchanged."""
        turned = None if self.packing is None else self.packing.turn()
        return replace(self, rows=self.columns, columns=self.rows, left=self.right, right=self.left, packing=turned)

    @property
    def depth(self) -> tuple:
        """The reduction iterators."""
        return self.reduction.reduce

    def extent(self, vars_) -> int:
        """Return the product of the extents of some iterators."""
        total = 1
        for var in vars_:
            total *= self.reduction.extents[var]
        return total


def contraction_of(reduction: Reduction, pairs: bool = False) -> Contraction | None:
    """Return the contraction in a reduction, or None if it sums no products or no iterator separates the operands.

    Parameters
    ----------
    pairs : bool
        The caller multiplies by `Contraction.times`, and so accepts operands that hold several integers.
    """
    found = _contractions.get(reduction, lambda: _contraction_of(reduction), current_index_type())
    return None if found is not None and found.packing and not pairs else found


def _contraction_of(reduction: Reduction) -> Contraction | None:
    packed = packed_factors(reduction.term)
    if (packed is None and len(factors(reduction.term)) == 1) or reduction.combine(index(1), index(1)) is None:
        return None
    if not isinstance(reduction.combine(fresh("a"), fresh("b")), tirx.Add):
        return None
    reduction = split_groups(reduction)
    order = memory_order(reduction.spatial, reduction.extents, reduction.output, reduction.indices)
    if not order:
        return None
    packing, multiplied = packed_factors(reduction.term) or (None, factors(reduction.term))
    fastest = next((v for v in reversed(order) if reduction.extents[v] > 1), order[-1])
    right = [f for f in multiplied if uses(f, [fastest])]
    left = [f for f in multiplied if not uses(f, [fastest])]
    if not left or not right:
        return None
    if packing is not None and right[0].same_as(multiplied[0]):
        packing = packing.turn()
    in_left, in_right = (uses(_product(side), order) for side in (left, right))
    batch = tuple(v for v in order if (v in in_left) == (v in in_right))
    rows = tuple(v for v in order if v in in_left and v not in in_right)
    columns = tuple(v for v in order if v in in_right and v not in in_left)
    return Contraction(reduction, batch, rows, columns, _product(left), _product(right), packing)


def _product(multiplied: list):
    result = multiplied[0]
    for factor in multiplied[1:]:
        result = result * factor
    return result


def split_groups(reduction: Reduction) -> Reduction:
    """Split an iterator that one operand uses only as ``v // q`` into ``v // q`` (shared) and ``v % q``."""
    return _split.get(reduction, lambda: _split_groups(reduction), current_index_type())


def _split_groups(reduction: Reduction) -> Reduction:
    for var in reduction.spatial:
        group = _group_size(reduction, var)
        if group is not None:
            return _split_groups(split_iterator(reduction, var, group))
    return reduction


def _group_size(reduction: Reduction, var) -> int | None:
    extent = reduction.extents[var]
    packed = packed_factors(reduction.term)
    for factor in packed[1] if packed else factors(reduction.term):
        divisors: set = set()
        hidden = fresh("quotient")

        def fold(div, divisors=divisors, hidden=hidden):
            if div.a.same_as(var) and isinstance(div.b, tirx.IntImm):
                divisors.add(int(div.b))
                return hidden
            return div

        rest = tvm_ffi.structural_map(factor, (tirx.FloorDiv, fold))
        if len(divisors) == 1 and not uses(rest, [var]):
            group = divisors.pop()
            if 1 < group < extent and extent % group == 0:
                return group
    return None


def split_iterator(reduction: Reduction, var, group: int) -> Reduction:
    """Return the reduction with ``var`` split into ``var // group`` and ``var % group``."""
    outer, inner = fresh(f"{var.name}_group"), fresh(f"{var.name}_in")
    extents: Mapping = {v: e for v, e in reduction.extents.items() if v is not var and not v.same_as(var)}
    extents = {**extents, outer: reduction.extents[var] // group, inner: group}
    simplifier = Simplifier(extents)
    where = {var: outer * index(group) + inner}

    def rewrite(expr):
        return simplifier.body(substitute(expr, where))

    spatial: list = []
    for v in reduction.spatial:
        spatial += [outer, inner] if v.same_as(var) else [v]
    return replace(
        reduction,
        spatial=tuple(spatial),
        extents=extents,
        term=rewrite(reduction.term),
        indices=tuple(simplifier.index(substitute(i, where)) for i in reduction.indices),
        finish=rewrite(reduction.finish),
    )

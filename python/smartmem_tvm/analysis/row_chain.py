# SPDX-License-Identifier: Apache-2.0
"""See in a kernel a chain of stages that works row by row: what attention and small stacks of layers have in common.

    s[b, i, j] += q[b, i, k] * x[b, j, k];  m[b, i] max= s[b, i, j];  ...;  o[b, i, d] += p[b, i, j] * v[b, j, d]

    rows i, batch b;  s and o are products (of rows with a matrix that all rows of a batch share), m is a statistic

Nothing is known of operators. Iterators of different stages are one *axis* if an intermediate buffer is written along
one and read along the other. A *row* axis is a spatial iterator of every stage; where the matrix of a product depends
on it, it is a *batch* axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from .half import HALF
from .index_map import variables
from .kernel import Kernel, Opaque, Stage, substitute


@dataclass(frozen=True, eq=False)
class Product:
    """A stage ``sum over depth of left(row, depth) * right(depth, column)``."""

    columns: tuple
    left: object
    right: object


@dataclass(frozen=True, eq=False)
class RowChain:
    """The rows of a kernel and the products in it.

    Attributes
    ----------
    kernel : Kernel
        With iterators of extent 1 taken out of the stages.
    axes : dict
        For each stage, the axis (a number) of each of its iterators.
    extents : dict
        Extent of each axis.
    batch, rows : tuple of int
        Axes that all stages share; those in `batch` select the matrices of the products.
    products : dict
        The stages that are products.
    """

    kernel: Kernel
    axes: dict
    extents: dict
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    products: dict

    def inner(self, stage: Stage) -> tuple:
        """Spatial iterators of a stage that are no row axes."""
        shared = {*self.batch, *self.rows}
        return tuple(v for v in stage.spatial if self.axes[stage][v] not in shared)

    def width(self, stage: Stage) -> int:
        """Values that a stage computes per row."""
        return math.prod(stage.extents[v] for v in self.inner(stage))

    @property
    def statistics(self) -> list[Stage]:
        """Reductions that are no products."""
        return [s for s in self.kernel.stages if s.reduction and s not in self.products]

    @property
    def row_count(self) -> int:
        """Rows that share their matrices."""
        return math.prod(self.extents[a] for a in self.rows)

    @property
    def batch_count(self) -> int:
        """Sets of matrices."""
        return math.prod(self.extents[a] for a in self.batch)

    @property
    def widest(self) -> int:
        """Most values of a row that one stage leaves to another."""
        return max((self.width(s) for s in self.kernel.stages[:-1]), default=1)

    @property
    def matrix_size(self) -> int:
        """Elements of the matrices of all products, for one batch."""
        return sum(math.prod(s.extents[v] for v in (*p.columns, *s.reduction)) for s, p in self.products.items())


def row_chain_of(kernel: Kernel) -> RowChain:
    """The chain in a kernel.

    Raises
    ------
    Opaque
        If some stage leaves its row, or a product's matrix is computed inside the kernel.
    """
    kernel = unitless(kernel)
    axes, extents = axes_of(kernel)
    spatial = [{axes[s][v] for v in s.spatial} for s in kernel.stages]
    shared = set.intersection(*spatial)
    order = [axes[kernel.stages[0]][v] for v in kernel.stages[0].spatial]
    shared_in_order = [a for a in order if a in shared]
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
        if any(load.source in kernel.intermediates for load in _loads(product.right)):
            raise Opaque("a matrix is computed in the kernel itself")
    rows = tuple(a for a in shared_in_order if a not in batch)
    return RowChain(kernel, axes, extents, tuple(a for a in shared_in_order if a in batch), rows, products)


def unitless(kernel: Kernel) -> Kernel:
    """The kernel without iterators of extent 1."""
    return replace(kernel, stages=tuple(without_units(s) for s in kernel.stages))


def without_units(stage: Stage) -> Stage:
    """The stage without its iterators of extent 1; one that reduces keeps a reduction iterator."""
    unit = [it.var for it in stage.iters if stage.extents[it.var] == 1]
    if stage.reduction and all(stage.extents[v] == 1 for v in stage.reduction):
        unit = [v for v in unit if not v.same_as(stage.reduction[0])]
    if not unit:
        return stage
    zeros = {v: tirx.const(0, v.ty.dtype) for v in unit}
    init = substitute(stage.init, zeros) if stage.init is not None else None
    iters = tuple(it for it in stage.iters if it.var not in zeros)
    return Stage(stage.name, iters, substitute(stage.body, zeros), init, stage.annotations)


def _loads(node) -> list:
    found: list = []
    tvm_ffi.structural_walk(node, (ir.TensorLoad, found.append))
    return found


def axes_of(kernel: Kernel, source=None) -> tuple[dict, dict]:
    """Axis of every iterator of every stage, and the extent of every axis.

    Parameters
    ----------
    source : buffer, optional
        An input that links iterators as intermediate buffers do, where it is read at bare iterators.

    Raises
    ------
    Opaque
        If an intermediate buffer is written or read through a map.
    """
    parent: dict = {(s, v): (s, v) for s in kernel.stages for v in s.extents}

    def root(key):
        while parent[key] != key:
            key = parent[key]
        return key

    producers: dict = {}
    reads: list = []
    for stage in kernel.stages:
        if not isinstance(stage.body, tirx.BufferStore) or stage.body.buffer in producers:
            raise Opaque(f"stage {stage.name} does not write one buffer")
        for load in stage.loads:
            pairs: list = []
            if load.source in producers:
                maker = producers[load.source]
                pairs = [(maker, made, read) for made, read in _links(maker, stage, load)]
            elif load.source in kernel.intermediates:
                raise Opaque(f"stage {stage.name} reads what is written later")
            elif source is not None and load.source.same_as(source):
                mine = list(load.indices)
                pairs = [
                    (s, i, j)
                    for s, indices in reads
                    for i, j in zip(indices, mine, strict=True)
                    if i in s.extents and j in stage.extents
                ]
                reads.append((stage, mine))
            for other, made, read in pairs:
                parent[root((stage, read))] = root((other, made))
        producers[stage.body.buffer] = stage
    return _numbered(kernel, root)


def _numbered(kernel: Kernel, root) -> tuple[dict, dict]:
    numbers: dict = {}
    axes: dict = {s: {v: numbers.setdefault(root((s, v)), len(numbers)) for v in s.extents} for s in kernel.stages}
    extents: dict = {}
    for stage in kernel.stages:
        if len(set(axes[stage].values())) != len(stage.extents):
            raise Opaque(f"two iterators of stage {stage.name} run along one axis")
        for var, axis in axes[stage].items():
            if extents.setdefault(axis, stage.extents[var]) != stage.extents[var]:
                raise Opaque(f"stage {stage.name} reads part of an intermediate result")
    return axes, extents


def _links(producer: Stage, reader: Stage, load) -> list:
    """Pairs of iterators that run along the same axis of the buffer that `load` reads."""
    pairs = []
    for made, read in zip(producer.body.indices, load.indices, strict=True):
        unit = isinstance(made, tirx.IntImm) and isinstance(read, tirx.IntImm)
        if unit and int(made) == int(read):
            continue
        if not (isinstance(made, ir.Var) and isinstance(read, ir.Var) and read in reader.extents):
            raise Opaque(f"stage {reader.name} reads {load.source.name} through a map")
        pairs.append((made, read))
    if {made for made, _ in pairs} != set(producer.spatial) or len(pairs) != len(producer.spatial):
        raise Opaque(f"stage {producer.name} writes {load.source.name} through a map")
    return pairs


def _check_rows(kernel: Kernel, axes: dict, shared: set) -> None:
    """Every row axis is read where it is written: links make sure of that, if no stage reduces along it."""
    for stage in kernel.stages:
        if any(axes[stage][v] in shared for v in stage.reduction):
            raise Opaque(f"stage {stage.name} reduces along the rows")


def product_of(stage: Stage, columns: tuple) -> Product | None:
    """The product in a stage whose spatial iterators `columns` are no rows, or None if it is none."""
    term = summand(stage)
    if term is None or not columns or stage.init is None:
        return None
    right = [f for f in factors(term) if any(v in columns for v in variables(f))]
    left = [f for f in factors(term) if not any(v in columns for v in variables(f))]
    if len(right) != 1 or not any(_loads(f) for f in left):
        return None
    return Product(columns, math.prod(left[1:], start=left[0]), right[0])


def summand(stage: Stage):
    """``t`` of a stage ``acc = acc + t``, None if it is none."""
    body = stage.body
    if not stage.reduction or not isinstance(body, tirx.BufferStore) or not isinstance(body.value, tirx.Add):
        return None
    for own, term in ((body.value.a, body.value.b), (body.value.b, body.value.a)):
        if isinstance(own, ir.TensorLoad) and own.source.same_as(body.buffer):
            return None if any(load.source.same_as(body.buffer) for load in _loads(term)) else term
    return None


def factors(term) -> list:
    """What a product multiplies; a product of halves may be added to a sum of another type."""
    if isinstance(term, tirx.Cast) and str(term.value.ty.dtype) == HALF and isinstance(term.value, tirx.Mul):
        return factors(term.value)
    return [*factors(term.a), *factors(term.b)] if isinstance(term, tirx.Mul) else [term]

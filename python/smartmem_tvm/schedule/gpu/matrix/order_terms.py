# SPDX-License-Identifier: Apache-2.0
"""Reorder the reduction of products on tensor cores (matrix instructions) to the order of memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from ....ir.exchange_constants import Exchange
from ....ir.index_map import variables
from ....ir.kernel import Kernel, Stage, parse, shape_of
from ....ir.storage import reordered
from ....ir.walk import loads
from ...core.expressions import Walk, memory_order
from ...core.rule import exchange_open
from ..gemm.product import MatmulProduct
from ..matmul.matmul import quads_in
from .products import multiplied_in


@module_pass(opt_level=0, name="smartmem.OrderTerms")
class OrderTerms:
    """Let a convolution by matrix instructions walk through the channels of a pixel before it goes to the next one.

    Before, with the channels of ``x`` innermost in memory::

        y[b, h, w, o] += x[b, h + p, w + q, c] * k[o, c, p, q]         terms c, p, q

    After, with the constant ``k`` stored so::

        y[b, h, w, o] += x[b, h + p, w + q, c] * k[o, p, q, c]         terms p, q, c

    Asynchronous copies then bring both operands to shared memory 16 bytes at a time, and fill in the zeros of padding.
    The constant of a product of bytes is stored with its terms innermost in any case, as instructions want them, also
    those of threads that multiply four bytes at once.

    The pass leaves unchanged: products of two tensors that are no constants; constants that are operands of arithmetic
    or are read twice; constants without a dimension for each term; tensors in which a term has no fixed stride.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Apply to every open kernel of `mod`."""
        return exchange_open(mod, in_memory_order)


def in_memory_order(func: tirx.PrimFunc, positions: Collection[int], target: Target) -> Exchange | None:
    """Return a kernel with the terms of its product in the order of memory; None if it has no product, or needs none.

    Parameters
    ----------
    func : PrimFunc
        An unscheduled kernel.
    positions : collection of int
        Positions of the parameters that are constants.
    """
    found = multiplied_in(func, target)
    if found is not None:
        return _ordered(parse(func), found[0], positions, found[1].element.terms_innermost)
    quads = quads_in(func, target)
    return None if quads is None else _ordered(parse(func), quads, positions, True)


def _ordered(
    kernel: Kernel, product: MatmulProduct, positions: Collection[int], terms_innermost: bool
) -> Exchange | None:
    contraction, constants = product.contraction, [kernel.inputs[position] for position in positions]
    terms, stage = contraction.depth, next(each for each in kernel.stages if each.reduction)
    left, right = (loads(side) for side in (contraction.left, contraction.right))
    if _are_constant(left, constants):
        left, right = right, left
    if not left or _are_constant(left, constants) or not _are_constant(right, constants):
        return None
    if set(terms) != set(stage.reduction):
        return None
    tensor, weights = max(left, key=lambda load: prod(shape_of(load.source))), right[0]
    order = _order(tensor, terms, contraction.reduction.extents)
    stored = _stored(weights, order)
    turns = terms_innermost and stored != tuple(range(len(weights.indices)))
    if stored is None or (order == terms and not turns):
        return None
    number = next(i for i, buffer in enumerate(kernel.inputs) if buffer.same_as(weights.source))
    moved, _ = reordered(kernel, weights.source, stored)
    both = zip(kernel.stages, moved.stages, strict=True)
    stages = tuple(_in_order(new, order) if old is stage else new for old, new in both)
    return Exchange(replace(moved, stages=stages), {number: partial(np.transpose, axes=stored)})


def _are_constant(side: list, constants: list) -> bool:
    return len(side) == 1 and any(side[0].source.same_as(each) for each in constants)


def _order(tensor: ir.TensorLoad, terms: tuple, extents: Mapping) -> tuple:
    """Return the terms by falling stride; unchanged if one has no fixed stride."""
    walk = Walk(extents)
    if any(walk.load_stride(tensor, term) is None for term in terms):
        return terms
    return memory_order(terms, extents, tensor.source, tensor.indices)


def _stored(weights: ir.TensorLoad, order: tuple) -> tuple[int, ...] | None:
    """Return the dimensions of the weights with the terms' last, in their order; None if a term has no dimension."""
    at = [next((dim for dim, each in enumerate(weights.indices) if each.same_as(term)), None) for term in order]
    others = [dim for dim, each in enumerate(weights.indices) if dim not in at]
    alone = not {var for dim in others for var in variables(weights.indices[dim])} & set(order)
    return (*others, *at) if alone and None not in at else None


def _in_order(stage: Stage, order: tuple) -> Stage:
    by_var = {it.var: it for it in stage.iters}
    return replace(stage, iters=(*(by_var[var] for var in (*stage.spatial, *order)),))

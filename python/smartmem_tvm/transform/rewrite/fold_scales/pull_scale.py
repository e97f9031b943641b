# SPDX-License-Identifier: Apache-2.0
"""Fold a multiplication by constants into the weights before it."""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from ....ir.block import CONVOLUTIONS, Bindings, constant, operator, shape_of, weight, with_args
from .constant_factors import aligned, moved_back, part_of, trimmed

_DEPTH = 32


def pull(block: Bindings, var, scale: np.ndarray, reader, depth: int = 0, most: int = 0) -> dict | None:
    """Multiply `var` by scaling the weights that it is computed from.

    Parameters
    ----------
    block : Bindings
        The block; not changed.
    var : Var
        The tensor.
    scale : ndarray
        Its factor (see `rewrite.fold_scales.factors`).
    reader : Var
        The only variable that may read it.
    most : int
        The most elements that a scaled constant other than a weight may have, by default those of `scale`: `scale`
        grows when it is moved over a reshape.

    Returns
    -------
    dict or None
        Edits: variable -> value to bind it to instead. None if there is another reader, or no way to do it.
    """
    if depth > _DEPTH or not isinstance(var, relax.DataflowVar) or block.readers(var) != [reader]:
        return None
    return _pull_value(block, var, scale, depth, most or scale.size)


def _pull_value(block: Bindings, var, scale: np.ndarray, depth: int, most: int) -> dict | None:
    value = block.values.get(var)
    name = operator(value)
    if isinstance(value, ir.Var):
        return pull(block, value, scale, var, depth + 1, most)
    if name in ("add", "subtract"):
        return _pull_sum(block, var, scale, depth, most)
    if name == "multiply":
        return _pull_product(block, var, scale, depth, most)
    if name == "nn.relu" and (scale > 0).all():
        return pull(block, value.args[0], scale, var, depth + 1, most)
    if name in CONVOLUTIONS:
        return _pull_convolution(var, value, scale)
    if name == "matmul":
        return _pull_matmul(block, var, scale, depth, most)
    if name == "strided_slice" or isinstance(value, relax.TupleGetItem):
        return _pull_part(block, var, scale, depth, most)
    moved = moved_back(value, scale)
    return None if moved is None else pull(block, value.args[0], moved, var, depth + 1, most)


def _pull_sum(block: Bindings, var, scale: np.ndarray, depth: int, most: int) -> dict | None:
    """Scale both summands, one of which may be a constant."""
    value = block.values[var]
    shape = shape_of(var)
    edits: dict = {}
    args = []
    for arg in value.args:
        bias = weight(arg)
        if bias is not None:
            product = aligned(bias, shape) * scale
            found = {} if product.size <= max(bias.size, most) else None
            arg = constant(trimmed(product, bias.ndim), bias)
        elif isinstance(arg, ir.Var) and shape_of(arg) == shape:
            found = pull(block, arg, scale, var, depth + 1, most)
        else:
            found = None
        if found is None or found.keys() & edits.keys():
            return None
        edits.update(found)
        args.append(arg)
    return {**edits, var: with_args(value, *args)}


def _pull_product(block: Bindings, var, scale: np.ndarray, depth: int, most: int) -> dict | None:
    """Scale one of two factors."""
    value = block.values[var]
    for i, arg in enumerate(value.args):
        factor = weight(arg)
        if factor is not None:
            product = aligned(factor, shape_of(var)) * scale
            if product.size <= max(factor.size, most):
                args = [*value.args[:i], constant(trimmed(product, factor.ndim), factor), *value.args[i + 1 :]]
                return {var: with_args(value, *args)}
        elif isinstance(arg, ir.Var) and shape_of(arg) == shape_of(var):
            edits = pull(block, arg, scale, var, depth + 1, most)
            if edits is not None:
                return edits
    return None


def _pull_convolution(var, value, scale: np.ndarray) -> dict | None:
    kernel = weight(value.args[1])
    if kernel is None or not has_plain_layout(value) or scale.size != scale.shape[1]:
        return None
    column = scale.reshape(-1, *(1,) * (kernel.ndim - 1))
    return {var: with_args(value, value.args[0], constant(kernel * column, kernel))}


def has_plain_layout(convolution) -> bool:
    """Whether channels come second in the data and outputs first in the kernel: NCHW and OIHW, say."""
    attrs = convolution.attrs
    data = [str(layout) for layout in (attrs.data_layout, attrs.out_layout)]
    return all(layout[:2] in ("NC", "") and layout.isalpha() | (not layout) for layout in data) and str(
        attrs.kernel_layout
    ).startswith("OI")


def _pull_matmul(block: Bindings, var, scale: np.ndarray, depth: int, most: int) -> dict | None:
    value = block.values[var]
    left, right = value.args
    matrix = weight(right)
    if matrix is not None:
        if scale.size != 1 and (matrix.ndim != 2 or scale.size != scale.shape[-1]):
            return None
        return {var: with_args(value, left, constant(matrix * scale.reshape(-1), matrix))}
    if scale.size != 1:
        return None
    for operand in (left, right):  # one number may multiply either
        if isinstance(operand, ir.Var):
            edits = pull(block, operand, scale.reshape((1,) * len(shape_of(operand))), var, depth + 1, most)
            if edits is not None:
                return edits
    return None


def _pull_part(block: Bindings, var, scale: np.ndarray, depth: int, most: int) -> dict | None:
    """Scale a part of a tensor: the other parts that are read must not overlap it."""
    value = block.values[var]
    part = part_of(block, value)
    if part is None or depth > _DEPTH:
        return None
    axis, taken = part
    whole = value.args[0] if isinstance(value, ir.Call) else block.values[value.tuple_value].args[0]
    source = whole if isinstance(value, ir.Call) else value.tuple_value
    if not isinstance(whole, relax.DataflowVar) or (not source.same_as(whole) and block.readers(whole) != [source]):
        return None
    for other in block.readers(source):
        theirs = part_of(block, block.values[other])
        if not other.same_as(var) and (theirs is None or theirs[0] != axis or np.intersect1d(theirs[1], taken).size):
            return None
    extents = list(scale.shape)
    extents[axis] = shape_of(whole)[axis]
    full = np.ones(extents, scale.dtype)
    full[(slice(None),) * axis + (taken,)] = scale
    return _pull_value(block, whole, full, depth + 1, most)

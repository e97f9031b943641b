# SPDX-License-Identifier: Apache-2.0
"""Operators that write into a copy of a tensor."""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of


def scatter_elements(node: Node) -> relax.Expr | None:
    """ScatterElements whose indices are smaller than the data outside of the axis, as ScatterND with full indices.

    TVM's operator assumes that the indices are as large as the data there, and accesses wrong places otherwise.
    """
    data, indices, updates = node.inputs
    sizes, places = shape_of(data), shape_of(indices)
    axis = node.attrs.get("axis", 0) % len(sizes)
    if 0 in places:
        return data
    if all(size == place or at == axis for at, (size, place) in enumerate(zip(sizes, places))):
        # The name is Scatter before opset 11; TVM's converter of that name does not support later opsets.
        return Node(node.bb, "ScatterElements", node.inputs, node.attrs, max(node.opset, 11), 1).by_tvm()
    count, dtype = int(np.prod(places)), dtype_of(indices)
    index = node.emit(relax.op.reshape(indices, (count, 1)))
    negative = node.emit(relax.op.less(index, constant(0, dtype)))
    index = node.emit(relax.op.where(negative, relax.op.add(index, constant(sizes[axis], dtype)), index))
    grid = np.indices(places).reshape(len(sizes), count).T
    columns = [index if at == axis else constant(grid[:, at : at + 1], dtype) for at in range(len(sizes))]
    target = node.emit(relax.op.concat(columns, 1)) if len(columns) > 1 else index
    reduction = node.text("reduction", "none").replace("none", "update")
    return relax.op.scatter_nd(data, target, node.emit(relax.op.reshape(updates, (count,))), reduction)


def scatter_nd(node: Node) -> relax.Expr | None:
    """ScatterND without indices: its data."""
    return node.inputs[0] if 0 in shape_of(node.inputs[1]) else None


def tensor_scatter(node: Node) -> relax.Expr:
    """TensorScatter: each place of the cache takes its own number, or that of the update if one falls on it."""
    cache, update, start = (*node.inputs, None)[:3]
    sizes, axis = shape_of(cache), node.attrs.get("axis", -2) % len(shape_of(cache))
    length, new = sizes[axis], shape_of(update)[axis]
    start = constant(np.zeros(sizes[0]), "int64") if start is None else start
    dtype = dtype_of(start)
    place = relax.op.subtract(constant(np.arange(length)[None], dtype), relax.op.reshape(start, (-1, 1)))
    if node.text("mode", "linear") == "circular":
        place = relax.op.floor_mod(node.emit(place), constant(length, dtype))
    along = [sizes[0] if at == 0 else length if at == axis else 1 for at in range(len(sizes))]
    place = node.emit(relax.op.reshape(node.emit(place), along))
    inside = node.emit(relax.op.less(place, constant(new, dtype)))
    inside = node.emit(relax.op.logical_and(inside, relax.op.greater_equal(place, constant(0, dtype))))
    nearest = relax.op.minimum(relax.op.maximum(place, constant(0, dtype)), constant(new - 1, dtype))
    index = node.emit(relax.op.broadcast_to(node.emit(nearest), sizes))
    return relax.op.where(inside, node.emit(relax.op.gather_elements(update, index, axis)), cache)


CONVERTERS = {
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
}

# SPDX-License-Identifier: Apache-2.0
"""Fold a multiplication by constants, and an addition after it, into the weights after them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from ....ir.block import CONVOLUTIONS, Bindings, constant, operator, shape_of, weight, with_args
from .constant_factors import aligned, moved_on, part_of
from .pull_scale import has_plain_layout

# The most operators that are visited on the way to the weights.
_LONGEST = 64


@dataclass(frozen=True)
class Affine:
    """``x * scale + shift``, of constants that broadcast to the tensor (see `rewrite.fold_scales.factors`)."""

    scale: np.ndarray
    shift: np.ndarray | None = None

    def map(self, move) -> Affine | None:
        """Apply `move` to both constants; None if it is None for one."""
        scale = move(self.scale)
        shift = None if self.shift is None else move(self.shift)
        return None if scale is None or (shift is None) != (self.shift is None) else Affine(scale, shift)

    def same(self, other: Affine) -> bool:
        """Whether both are equal."""
        return np.array_equal(self.scale, other.scale) and np.array_equal(self.shift, other.shift)


def push(block: Bindings, var, affine: Affine) -> dict | None:
    """Apply `affine` to `var` in the weights of all of its readers.

    Operators that only move data may lie between, as long as they move no other tensor.

    Returns
    -------
    dict or None
        Edits: variable -> value to bind it to instead. None if a reader has no constant weights, or if one is visible
        outside of the block.
    """
    pending = {var: affine}
    edits: dict = {}
    queue: list = []
    seen: set = set()

    def visit(source) -> bool:
        readers = block.readers(source)
        for reader in readers:
            if reader not in seen:
                seen.add(reader)
                heapq.heappush(queue, block.position[reader])
        return bool(readers) and isinstance(source, relax.DataflowVar)

    if not visit(var):
        return None
    while queue:
        reader = block.order[heapq.heappop(queue)]
        moved = _through(block, reader, pending)
        if moved is not None:
            pending[reader] = moved
            if not visit(reader) or len(seen) > _LONGEST:
                return None
            continue
        found = _into_weights(block, reader, pending)
        if found is None:
            return None
        edits.update(found)
    return edits


def _through(block: Bindings, reader, pending: dict) -> Affine | None:
    """Return the affine map behind a data movement; None if `reader` is none."""
    value = block.values[reader]
    if isinstance(value, ir.Var):
        return pending[value]
    if operator(value) == "concat":
        return _through_concat(value, pending)
    if operator(value) == "split":
        return pending[value.args[0]]
    if operator(value) in ("multiply", "divide", "nn.relu"):
        return _through_product(block, reader, pending)
    if isinstance(value, relax.TupleGetItem):
        part = part_of(block, value)
        if part is None or value.tuple_value not in pending:
            return None
        axis, taken = part
        return pending[value.tuple_value].map(lambda f: f if f.shape[axis] == 1 else f.take(taken, axis))
    if operator(value) and value.args and value.args[0] in pending:
        return pending[value.args[0]].map(lambda factor: moved_on(value, factor))
    return None


def _through_product(block: Bindings, reader, pending: dict) -> Affine | None:
    """Return the affine map behind a product, whose factor it scales, or behind a ReLU, if the scale is positive."""
    value = block.values[reader]
    first, *others = value.args
    if operator(value) == "multiply" and first not in pending:
        first, others = others[0], [first]
    if first not in pending or any(isinstance(each, ir.Var) and each in pending for each in others):
        return None
    affine = pending[first]
    if affine.shift is not None or (operator(value) == "nn.relu" and not (affine.scale > 0).all()):
        return None
    return affine if shape_of(first) == shape_of(reader) else None


def _through_concat(value, pending: dict) -> Affine | None:
    fields = list(getattr(value.args[0], "fields", ()))
    if not fields or not all(isinstance(field, ir.Var) and field in pending for field in fields):
        return None
    first = pending[fields[0]]
    axis = int(value.attrs.axis) % first.scale.ndim
    constants = [each for each in (first.scale, first.shift) if each is not None]
    same = all(first.same(pending[field]) for field in fields[1:])
    return first if same and all(each.shape[axis] == 1 for each in constants) else None


def _into_weights(block: Bindings, reader, pending: dict) -> dict | None:
    value = block.values[reader]
    name = operator(value)
    if name not in ("matmul", *CONVOLUTIONS) or value.args[0] not in pending or value.args[1] in pending:
        return None
    array, affine = weight(value.args[1]), pending[value.args[0]]
    if array is None:
        return None
    found = _matmul(array, affine) if name == "matmul" else _convolution(value, array, affine)
    if found is None:
        return None
    scaled, bias = found
    call = with_args(value, value.args[0], constant(scaled, array))
    if bias is None or not bias.any():
        return {reader: call}
    shape = [1] * len(shape_of(reader))
    shape[-1 if name == "matmul" else 1] = bias.size
    return _with_bias(block, reader, call, constant(bias.reshape(shape if name != "matmul" else -1), array))


def _matmul(matrix: np.ndarray, affine: Affine) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the scaled matrix, and the bias that the shift adds to each column."""
    if matrix.ndim != 2 or not _along(affine, -1):
        return None
    scaled = matrix * affine.scale.reshape(-1, 1)
    if affine.shift is None:
        return scaled, None
    shift = np.broadcast_to(affine.shift.reshape(-1), matrix.shape[:1])
    return scaled, shift.astype("float64") @ matrix


def _convolution(value, kernel: np.ndarray, affine: Affine) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the scaled kernel and the shift's bias of each output channel; zeros of a padding must not be shifted."""
    padded = any(int(each) for each in value.attrs.padding)
    shifted = affine.shift is not None and affine.shift.any()
    if not has_plain_layout(value) or not _along(affine, 1) or (padded and shifted):
        return None
    groups, (outputs, inputs) = int(value.attrs.groups), kernel.shape[:2]
    grouped = kernel.reshape(groups, outputs // groups, inputs, -1)

    def channels(array):
        return np.broadcast_to(array.reshape(-1), (groups * inputs,)).reshape(groups, 1, inputs, 1)

    scaled = (grouped * channels(affine.scale)).reshape(kernel.shape)
    bias = (grouped * channels(affine.shift).astype("float64")).sum((2, 3)).reshape(-1) if shifted else None
    return scaled, bias


def _along(affine: Affine, axis: int) -> bool:
    """Whether the constants differ along one axis only."""
    return all(each is None or each.size == each.shape[axis] for each in (affine.scale, affine.shift))


def _with_bias(block: Bindings, var, call, bias) -> dict:
    """Add a bias to the value of `var`: in the addition of a constant that reads it, or by a new addition."""
    readers = block.readers(var)
    if block.is_read_once(var) and operator(block.values[readers[0]]) == "add":
        addition = block.values[readers[0]]
        other = [arg for arg in addition.args if not arg.same_as(var)]
        old = weight(other[0]) if other else None
        fits = old is not None and aligned(old, shape_of(var)) is not None and old.size <= bias.value.numpy().size
        if fits and shape_of(readers[0]) == shape_of(var):
            return {var: call, readers[0]: with_args(addition, var, constant(old + bias.value.numpy(), old))}
    return {var: relax.op.add(call, bias)}

# SPDX-License-Identifier: Apache-2.0
"""Reductions in the types that TVM's converters compute wrongly, and norms."""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of


def reduction(node: Node) -> relax.Expr | None:
    """A reduction; one along no axes still applies its function to each number, which TVM omits."""
    axes = node.attrs.get("axes") if node.input(1) is None else node.constant(1)
    if node.attrs.get("noop_with_empty_axes", 0) and (axes is None or not np.size(axes)):
        x = node.inputs[0]
        alone = node.emit(relax.op.expand_dims(x, -1))
        node = node.with_inputs(alone, constant([-1], "int64"), keepdims=0, noop_with_empty_axes=0)
        result = _BY_TYPE.get(node.op, lambda _: None)(node)
        return node.by_tvm() if result is None else result
    return _BY_TYPE.get(node.op, lambda _: None)(node)


def extreme(node: Node) -> relax.Expr | None:
    """ReduceMax and ReduceMin of booleans, computed on the numbers 0 and 1."""
    if dtype_of(node.inputs[0]) != "bool":
        return None
    wide = node.with_inputs(astype(node, node.inputs[0], "int8"), *node.inputs[1:])
    return relax.op.astype(node.emit(wide.by_tvm()), "bool")


def in_wider_type(node: Node) -> relax.Expr | None:
    """Sums of halves in float32; reductions of integers with fractional values in float64, truncated at the end."""
    dtype = dtype_of(node.inputs[0])
    if dtype in ("float16", "bfloat16"):
        working = "float32"
    elif "int" in dtype and node.op in _FRACTIONS:
        working = "float64"
    else:
        return None
    wide = node.with_inputs(astype(node, node.inputs[0], working), *node.inputs[1:])
    return relax.op.astype(node.emit(wide.by_tvm()), dtype)


def arg_extreme(node: Node) -> relax.Expr | None:
    """ArgMax and ArgMin of bfloat16: the first or the last place of the extreme.

    TVM's lowering of bfloat16 compares the bits as integers in a reduction of pairs.
    """
    x = node.inputs[0]
    if dtype_of(x) != "bfloat16":
        return None
    sizes, axis = shape_of(x), node.attrs.get("axis", 0) % len(shape_of(x))
    wide, last = astype(node, x, "float32"), node.attrs.get("select_last_index", 0)
    best = node.emit((relax.op.max if node.op != "ArgMin" else relax.op.min)(wide, axis, keepdims=True))
    places = np.arange(sizes[axis]).reshape([-1 if at == axis else 1 for at in range(len(sizes))])
    found = node.emit(relax.op.equal(wide, best))
    place = node.emit(relax.op.where(found, constant(places, "int64"), constant(-1 if last else sizes[axis], "int64")))
    return (relax.op.max if last else relax.op.min)(place, axis, keepdims=bool(node.attrs.get("keepdims", 1)))


def hardmax(node: Node) -> relax.Expr | None:
    """Hardmax of bfloat16: one at the place that `arg_extreme` returns."""
    x = node.inputs[0]
    if dtype_of(x) != "bfloat16":
        return None
    if node.opset < 13:
        raise ValueError("its numbers are bfloat16, which came with opset 13")
    sizes, axis = shape_of(x), node.attrs.get("axis", -1) % len(shape_of(x))
    place = node.emit(arg_extreme(node.with_inputs(x, axis=axis, keepdims=1)))
    places = np.arange(sizes[axis]).reshape([-1 if at == axis else 1 for at in range(len(sizes))])
    return relax.op.astype(node.emit(relax.op.equal(constant(places, "int64"), place)), "bfloat16")


def lp_normalization(node: Node) -> relax.Expr:
    """LpNormalization along one axis by the L1 or L2 norm; a vector of zeros stays zero."""
    given = dtype_of(node.inputs[0])
    dtype = given if given == "float64" else "float32"  # the square of a half may become infinite or 0
    x = astype(node, node.inputs[0], dtype)
    axis, p = node.attrs.get("axis", -1) % len(shape_of(x)), node.attrs.get("p", 2)
    magnitude = relax.op.abs(x) if p == 1 else relax.op.multiply(x, x)
    norm = node.emit(relax.op.sum(node.emit(magnitude), axis, keepdims=True))
    norm = norm if p == 1 else node.emit(relax.op.sqrt(norm))
    zero = node.emit(relax.op.equal(norm, constant(0, dtype)))
    result = node.emit(relax.op.divide(x, node.emit(relax.op.where(zero, constant(1, dtype), norm))))
    return astype(node, result, given)


def determinant(node: Node) -> relax.Expr:
    """Det by unrolled elimination with partial pivoting."""
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    working = dtype if dtype == "float64" else "float32"
    *batch, size, _ = shape_of(x)
    if size > _LARGEST_DETERMINANT:
        raise ValueError(f"its matrices are {size}x{size}, and at most {_LARGEST_DETERMINANT} rows are unrolled")
    rest = node.emit(relax.op.reshape(astype(node, x, working), (int(np.prod(batch)), size, size)))
    result = constant(np.ones(int(np.prod(batch))), working)
    for left in range(size, 0, -1):
        pivot, flip, rest = _eliminated(node, rest, left, working)
        result = node.emit(relax.op.multiply(result, node.emit(relax.op.multiply(pivot, flip))))
    return relax.op.reshape(astype(node, result, dtype), batch)


_LARGEST_DETERMINANT = 8


def _eliminated(node: Node, rest: relax.Expr, size: int, dtype: str) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Do one step on ``(batch, size, size)``: return the pivot, the sign of the exchange of rows, and the remainder."""
    emit, op = node.emit, relax.op
    column = emit(op.reshape(emit(op.strided_slice(rest, [2], [0], [1])), (-1, size)))
    row = emit(op.expand_dims(emit(op.argmax(emit(op.abs(column)), 1)), 1))
    rows = constant(np.arange(size)[None], "int64")
    chosen = emit(op.astype(emit(op.equal(rows, row)), dtype))
    top = emit(op.sum(emit(op.multiply(rest, emit(op.expand_dims(chosen, 2)))), 1, keepdims=True))
    pivot = emit(op.sum(emit(op.multiply(column, chosen)), 1))
    flip = emit(
        op.where(
            emit(op.equal(emit(op.squeeze(row, 1)), constant(0, "int64"))), constant(1, dtype), constant(-1, dtype)
        )
    )
    if size == 1:
        return pivot, flip, rest
    # The exchange puts the first row in the place of the pivot's; the first row is then dropped.
    first = emit(op.strided_slice(rest, [1], [0], [1]))
    swapped = emit(op.where(emit(op.expand_dims(emit(op.equal(rows, row)), 2)), first, rest))
    below = emit(op.strided_slice(swapped, [1], [1], [size]))
    safe = emit(op.where(emit(op.equal(pivot, constant(0, dtype))), constant(1, dtype), pivot))
    factor = emit(op.divide(emit(op.strided_slice(below, [2], [0], [1])), emit(op.reshape(safe, (-1, 1, 1)))))
    below = emit(op.subtract(below, emit(op.multiply(factor, top))))
    return pivot, flip, emit(op.strided_slice(below, [2], [1], [size]))


_FRACTIONS = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean")
_BY_TYPE = {
    "ReduceMax": extreme,
    "ReduceMin": extreme,
    **dict.fromkeys((*_FRACTIONS, "ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare"), in_wider_type),
}

CONVERTERS = {
    "ArgMax": arg_extreme,
    "ArgMin": arg_extreme,
    "Hardmax": hardmax,
    "Det": determinant,
    "LpNormalization": lp_normalization,
    **dict.fromkeys(_BY_TYPE, reduction),
}

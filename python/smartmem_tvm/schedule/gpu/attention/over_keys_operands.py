# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of an attention over keys, as its kernels read them."""

from __future__ import annotations

from tvm import DataType, ir, tirx

from ....ir.index_map import variables
from ....ir.walk import loads
from ...core.nest import Scope, fresh, index
from ..gemm.operand import Operand
from .over_keys_tile import VECTOR_BYTES, KeyShape
from .softmax import SoftmaxAttention


def shape_of(attention: SoftmaxAttention) -> KeyShape | None:
    """Return the sizes of an attention; None if its keys or values have no vectors in memory."""
    chain = attention.chain
    _, keys, values = operands(attention)
    together = next(
        many
        for many in range(chain.batch_count, 0, -1)
        if chain.batch_count % many == 0 and _same_for(keys, many) and _same_for(values, many)
    )
    read = [_stored(each) for each in (keys, values)]
    if None in read or read[0] != read[1]:
        return None
    size = read[0]
    most = VECTOR_BYTES // size
    return KeyShape(
        chain.batch_count // together,
        together * chain.row_count,
        chain.row_count,
        attention.keys,
        attention.depth_count,
        attention.width,
        size,
        keys.run(True, most),
        values.run(False, most),
    )


def operands(attention: SoftmaxAttention) -> tuple[Operand, Operand, Operand]:
    """Return queries, keys and values in their own types, by rows, keys and columns."""
    chain = attention.chain
    first, second = chain.products[attention.scores], chain.products[attention.result]

    def operand(stage, expr, along: str, outer: int, depth: int) -> Operand:
        def value(b, at, k):
            return attention.at(stage, expr, batch=b, depth=k, **{along: at})

        return Operand(value, chain.batch_count, outer, depth)

    return (
        operand(attention.scores, first.left, "row", chain.row_count, attention.depth_count),
        operand(attention.scores, first.right, "column", attention.keys, attention.depth_count),
        operand(attention.result, second.right, "column", attention.width, attention.keys),
    )


def _same_for(operand: Operand, many: int) -> bool:
    """Whether an operand is the same for each `many` neighbouring batches."""
    scope = Scope()
    outer, inner, at, k = (fresh(name) for name in ("outer", "inner", "at", "k"))
    for var, extent in ((outer, operand.batch // many), (inner, many), (at, operand.outer), (k, operand.depth)):
        scope.analyzer.bind(var, ir.Range(index(0), index(extent)))
    value = scope.simplify(operand.value(outer * index(many) + inner, at, k))
    return many == 1 or not any(inner.same_as(var) for var in variables(value))


def _stored(operand: Operand) -> int | None:
    """Return the bytes of a number of a matrix that is only loaded, and cast; None for any other."""
    value = bare(operand.value(index(0), index(0), index(0)))
    read = loads(value)
    if len(read) != 1 or not value.same_as(read[0]):
        return None
    return DataType(str(value.ty.dtype)).itemsize


def bare(value):
    """Return what is in memory of a number that may be cast."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value

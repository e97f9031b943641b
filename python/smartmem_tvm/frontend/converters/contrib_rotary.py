# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's rotary embeddings: pairs of numbers rotated by an angle from a table, for each position."""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of


def rotary_embedding(node: Node) -> relax.Expr:
    """com.microsoft.RotaryEmbedding of [batch, rows, heads * size] or [batch, heads, rows, size]."""
    positions, cosines, sines = node.inputs[1:4]
    rows = shape_of(node.inputs[0])[-2]
    return _of_heads(node, [_row(node, table, _places(node, positions, rows)) for table in (cosines, sines)])


def _of_heads(node: Node, rows_of_tables: list[relax.Expr]) -> relax.Expr:
    """Rotate the first input, with or without an axis of heads."""
    x = node.inputs[0]
    tables = *rows_of_tables, bool(node.attrs.get("interleaved", 0))
    if len(shape_of(x)) == 4:
        return turned_by(node, x, *tables)
    batch, rows, width = shape_of(x)
    heads, turned = node.attrs.get("num_heads", 0), node.attrs.get("rotary_embedding_dim", 0)
    if turned and not heads:
        raise ValueError("its attribute rotary_embedding_dim needs num_heads, which is left out")
    size = width // heads if heads else 2 * shape_of(rows_of_tables[0])[3]
    split = node.emit(relax.op.reshape(x, (batch, rows, width // size, size)))
    split = turned_by(node, node.emit(relax.op.permute_dims(split, (0, 2, 1, 3))), *tables)
    return relax.op.reshape(node.emit(relax.op.permute_dims(split, (0, 2, 1, 3))), (batch, rows, width))


def m_rotary_embedding(node: Node) -> relax.Expr:
    """com.microsoft.MRotaryEmbedding: each pair has the angle of a position in time, height or width."""
    positions, tables = node.inputs[1], node.inputs[2:4]
    sections, pairs = list(node.attrs["mrope_section"]), shape_of(tables[0])[1]
    if len(sections) != 3 or sum(sections) != pairs:
        raise ValueError(f"its mrope_section is {sections}, which does not add up to {pairs} pairs")
    kind = np.repeat(np.arange(3), sections)
    if node.attrs.get("mrope_layout", 0):  # interleaved; time for the remaining pairs
        kind = np.zeros(pairs, int)
        for stream in (1, 2):
            kind[stream : sections[stream] * 3 : 3] = stream
    axes = node.emit(relax.op.split(positions, 3, 0))
    places = [node.emit(relax.op.squeeze(node.emit(axes[at]), 0)) for at in range(3)]
    found = []
    for table in tables:
        time, *others = (_row(node, table, each) for each in places)
        for stream, other in enumerate(others, 1):
            mine = constant((kind == stream).reshape(1, 1, 1, pairs), "bool")
            time = node.emit(relax.op.where(mine, other, time))
        found.append(time)
    return _of_heads(node, found)


def gemma_rotary_embedding(node: Node) -> relax.Expr:
    """com.microsoft.GemmaRotaryEmbedding: queries and keys, given together with their quarter-turn rotations."""
    angles, *given = node.inputs[:5]
    batch, rows, size = shape_of(angles)
    sine, cosine = (
        node.emit(
            relax.op.reshape(node.astype(node.emit(function(angles)), dtype_of(given[0])), (batch, 1, rows, size))
        )
        for function in (relax.op.sin, relax.op.cos)
    )
    results = []
    for x, turned in (given[:2], given[2:]):
        parts = (relax.op.multiply(x, cosine), relax.op.multiply(turned, sine))
        results.append(node.emit(relax.op.add(*map(node.emit, parts))))
    return relax.Tuple(results)


def _places(node: Node, positions: relax.Expr, rows: int) -> relax.Expr:
    """Return positions [batch or 1, rows]; a single number is the position of the first row."""
    if len(shape_of(positions)) == 2:
        return positions
    return node.emit(relax.op.add(positions, constant(np.arange(rows)[None], dtype_of(positions))))


def rotated(
    node: Node, x: relax.Expr, positions: relax.Expr, cosines: relax.Expr, sines: relax.Expr, interleaved: bool
) -> relax.Expr:
    """Rotate the first numbers of each row of [batch, heads, rows, size]: pairs of neighbours, or of the two halves.

    Parameters
    ----------
    positions
        [batch or 1, rows]: the row of the tables for each position.
    cosines, sines
        [positions, pairs]. Numbers beyond the pairs stay unchanged.
    """
    return turned_by(node, x, *(_row(node, table, positions) for table in (cosines, sines)), interleaved)


def turned_by(node: Node, x: relax.Expr, cosine: relax.Expr, sine: relax.Expr, interleaved: bool) -> relax.Expr:
    """Rotate as in `rotated` with the cosines and sines of each row, [batch or 1, 1, rows, pairs]."""
    batch, heads, rows, size = shape_of(x)
    pairs = shape_of(cosine)[3]
    turned = x if 2 * pairs == size else _part(node, x, 0, 2 * pairs)
    if interleaved:
        paired = node.emit(relax.op.reshape(turned, (batch, heads, rows, pairs, 2)))
        first, second = (
            node.emit(relax.op.squeeze(node.emit(relax.op.strided_slice(paired, [4], [at], [at + 1])), 4))
            for at in range(2)
        )
    else:
        first, second = _part(node, turned, 0, pairs), _part(node, turned, pairs, 2 * pairs)
    new = (
        relax.op.subtract(relax.op.multiply(first, cosine), relax.op.multiply(second, sine)),
        relax.op.add(relax.op.multiply(second, cosine), relax.op.multiply(first, sine)),
    )
    new = [node.emit(each) for each in new]
    if interleaved:
        joined = node.emit(relax.op.reshape(node.emit(relax.op.stack(new, 4)), (batch, heads, rows, 2 * pairs)))
    else:
        joined = node.emit(relax.op.concat(new, 3))
    return joined if 2 * pairs == size else node.emit(relax.op.concat([joined, _part(node, x, 2 * pairs, size)], 3))


def _row(node: Node, table: relax.Expr, positions: relax.Expr) -> relax.Expr:
    """Return the rows of a table for positions, [batch or 1, 1, rows, pairs]."""
    taken = node.call("Gather", table, positions, axis=0)
    batch, rows, pairs = shape_of(taken)
    return node.emit(relax.op.reshape(taken, (batch, 1, rows, pairs)))


def _part(node: Node, x: relax.Expr, begin: int, end: int) -> relax.Expr:
    return node.emit(relax.op.strided_slice(x, [3], [begin], [end]))


CONVERTERS = {
    "com.microsoft.GemmaRotaryEmbedding": gemma_rotary_embedding,
    "com.microsoft.MRotaryEmbedding": m_rotary_embedding,
    "com.microsoft.RotaryEmbedding": rotary_embedding,
}

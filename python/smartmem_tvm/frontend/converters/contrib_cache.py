# SPDX-License-Identifier: Apache-2.0
"""Caches of keys and values whose length differs between batches and may be known only at run time."""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of, value_of


def past_lengths(node: Node, lengths: relax.Expr, rows: int, total: int) -> relax.Expr:
    """Return the number of tokens of each batch before the new ones, as [batch, 1, 1, 1].

    Parameters
    ----------
    lengths
        For each batch, the number of its tokens minus one.
    total
        The largest number of tokens of a batch; if it equals `rows`, no token is old.
    """
    batch = int(np.prod(shape_of(lengths), dtype=int))
    if total == rows:
        return constant(np.zeros((batch, 1, 1, 1)), "int32")
    if (known := value_of(lengths)) is not None:
        return constant(known.reshape(batch, 1, 1, 1) + 1 - rows, "int32")
    lengths = node.emit(relax.op.reshape(lengths, (batch, 1, 1, 1)))
    return node.emit(relax.op.add(lengths, constant(1 - rows, "int32")))


def key_positions(node: Node, past: relax.Expr, lengths: relax.Expr, rows: int) -> relax.Expr:
    """Return the position of each new token, [batch, rows]; like ONNX Runtime, 1 for padding."""
    batch = shape_of(past)[0]
    places = relax.op.add(node.emit(relax.op.reshape(past, (batch, 1))), constant(np.arange(rows)[None], "int32"))
    places = node.emit(places)
    ends = node.emit(relax.op.reshape(lengths, (batch, 1)))
    return node.emit(relax.op.where(relax.op.less_equal(places, ends), places, constant(1, "int32")))


def with_past(node: Node, old: relax.Expr | None, new: relax.Expr, past: relax.Expr, total: int) -> relax.Expr:
    """Return [batch, heads, keys, size]: the first `past` keys of `old`, then the new ones, then zeros.

    The number of keys is the larger of that of `old` and `total`.
    """
    (batch, _, rows, _), before = shape_of(new), 0 if old is None else shape_of(old)[2]
    keys, known = max(before, total), value_of(past)
    if known is not None and (known == before).all():
        result = new if not before else node.emit(relax.op.concat([old, new], 2))
        return _padded(node, result, keys)
    both = new if not before else node.emit(relax.op.concat([old, new], 2))
    # The index into `both` of each key: its own for an old key, then those of the new keys.
    place = constant(np.arange(keys).reshape(1, keys), "int32")
    past = node.emit(relax.op.reshape(past, (batch, 1)))
    shifted = node.emit(relax.op.add(relax.op.subtract(place, past), constant(before, "int32")))
    index = relax.op.where(relax.op.less(place, past), place, shifted)
    index = node.emit(
        relax.op.minimum(relax.op.maximum(index, constant(0, "int32")), constant(before + rows - 1, "int32"))
    )
    parts = []
    for at in range(batch):
        mine = both if batch == 1 else node.emit(relax.op.strided_slice(both, [0], [at], [at + 1]))
        own = node.emit(relax.op.reshape(relax.op.strided_slice(index, [0], [at], [at + 1]), (keys,)))
        parts.append(node.emit(relax.op.take(mine, own, 2, mode="clip")))
    taken = parts[0] if batch == 1 else node.emit(relax.op.concat(parts, 0))
    filled = relax.op.less(shifted, constant(before + rows, "int32"))
    filled = node.emit(relax.op.reshape(filled, (batch, 1, keys, 1)))
    return node.emit(relax.op.where(filled, taken, constant(0, dtype_of(new))))


def _padded(node: Node, x: relax.Expr, keys: int) -> relax.Expr:
    missing = keys - shape_of(x)[2]
    return x if not missing else node.emit(relax.op.nn.pad(x, [0] * 5 + [missing, 0, 0]))

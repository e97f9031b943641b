# SPDX-License-Identifier: Apache-2.0
"""Quads of bytes as two pairs each, for CPUs that multiply vectors of pairs only: the steps of quantized LSTMs."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from tvm import ir, tirx

from ..._tvm import mapped
from ...ir.exchange_constants import Exchange
from ...ir.kernel import is_own
from ...ir.packings import QUADS, packed_factors
from ...ir.pairs import BYTES, INTEGER, dot, pair_of_bytes
from ...ir.walk import loads
from ..core.nest import index

# By definition of a quad of four bytes: bytes 0 and 2 of it, and the bits of one.
_EVERY_OTHER, _BYTE = 0x00FF00FF, 8
"""Mask of the even bytes of a quad as a pair, and the bits by which the odd ones are moved to their places."""


def split_quads(func: tirx.PrimFunc, positions: Collection[int]) -> Exchange | None:
    """Return the kernel with sums over pairs, in place of those over quads with a constant; None if it has none.

    Before::

        sums[i] += dot_of_quads(a[k], w[.., i])

    After, with the even and the odd bytes of ``w`` as pairs of bytes::

        sums[i] += dot(a[k] & 0xff00ff, w[.., 0, i]);   sums[i] += dot(a[k] >> 8 & 0xff00ff, w[.., 1, i])

    Parameters
    ----------
    positions : collection of int
        The parameters that are constants in all calls.
    """
    params, forms, body = list(func.params), {}, func.body
    for position in positions:
        old = params[position]
        *outer, last = map(int, old.shape)
        new = tirx.decl_buffer([*map(index, (*outer, 2, last))], BYTES, old.name, layout=None)
        changed = mapped(body, (tirx.BufferStore, lambda store, old=old, new=new: _in_pairs(store, old, new)))
        if changed.same_as(body) or any(load.source.same_as(old) for load in loads(changed)):
            continue
        body = mapped(changed, (ir.TensorRegion, lambda each, old=old, new=new: _region(each, old, new)))
        params[position], forms[position] = new, _even_and_odd
    return Exchange(tirx.PrimFunc(params, body, func.ret_type, func.attrs), forms) if forms else None


def _in_pairs(store: tirx.BufferStore, old, new) -> tirx.Stmt:
    total = store.value
    packing, factors = (packed_factors(total.b) if isinstance(total, tirx.Add) else None) or (None, ())
    if packing is not QUADS or not isinstance(total.a, ir.TensorLoad) or not is_own(total.a, store):
        return store
    whole, signed = factors
    if not isinstance(signed, ir.TensorLoad) or not signed.source.same_as(old):
        return store
    mask, byte = tirx.const(_EVERY_OTHER, INTEGER), tirx.const(_BYTE, INTEGER)
    *outer, last = signed.indices
    sums = []
    for number, half in enumerate((whole & mask, (whole >> byte) & mask)):
        product = dot(half, pair_of_bytes(new[(*outer, index(number), last)]))
        sums.append(tirx.BufferStore(store.buffer, total.a + product, store.indices))
    return tirx.SeqStmt(sums)


def _region(region, old, new):
    if not region.source.same_as(old):
        return region
    return tirx.BufferRegion(new, [ir.Range(index(0), size) for size in new.shape])


def _even_and_odd(array: np.ndarray) -> np.ndarray:
    """Return the quads of the last axis as pairs of their even bytes, and then of their odd ones."""
    every = np.ascontiguousarray(array).view("int8").reshape(*array.shape, 2, 2)  # [.., quad, number of a pair, half]
    halves = np.ascontiguousarray(np.moveaxis(every, -1, -3))  # [.., half, quad, number of a pair]
    return halves.view(BYTES)[..., 0]

# SPDX-License-Identifier: Apache-2.0
"""The x86 instruction that multiplies vectors of pairs of integers (`ir.pairs`) and adds up each pair.

On processors with VNNI, LLVM fuses it with the addition to a sum into one instruction.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx

from ...ir.kernel import is_own, substitute
from ...ir.pairs import BYTES, INTEGER, narrowest, pairs_of
from ...ir.walk import contains, loads
from ..core.nest import Scope, index

_NAMES = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}


def dots(lanes: int) -> Callable | None:
    """Return a function that emits the `dot` of two vectors of `lanes` pairs, None if there is no instruction."""
    name = _NAMES.get(lanes)
    if name is None:
        return None

    def multiply(left, right):
        kind = f"int16x{2 * lanes}"
        halves = (each if str(each.ty.dtype) == kind else tirx.reinterpret(kind, each) for each in (left, right))
        return tirx.call_llvm_pure_intrin(f"{INTEGER}x{lanes}", name, *halves)

    return multiply


def sums_of_dots(store: tirx.BufferStore, lane, count: int, lanes: int) -> list[tirx.BufferStore] | None:
    """Return ``sums[.., lane] += dot(left, right[.., lane])`` as vectors, None if the store has another form.

    Parameters
    ----------
    lane : tirx.Var
        From 0 to `count` - 1, a multiple of `lanes`.
    """
    total, (*_, place) = store.value, store.indices
    found = pairs_of(total.b) if isinstance(total, tirx.Add) else None
    if found is None or count % lanes or not place.same_as(lane):
        return None
    if not isinstance(total.a, ir.TensorLoad) or not is_own(total.a, store):
        return None
    left, right = sorted(found, key=lambda each: contains(each, ir.Var, lane.same_as))
    load = narrowest(right)
    outer = loads(load)[0].indices[:-1] if isinstance(load, ir.TensorLoad) else [lane]
    if any(contains(each, ir.Var, lane.same_as) for each in (left, *outer)):
        return None
    one, zero = (substitute(load.indices[-1], {lane: index(at)}) for at in (1, 0))
    if not sym.Analyzer().can_prove_equal(one - zero, index(1)):
        return None

    def vector(first: int) -> tirx.BufferStore:
        at = [*store.indices[:-1], tirx.Ramp(index(first), index(1), lanes)]
        along = vector_of(substitute(load, {lane: index(first)}), lanes)
        across = tirx.Broadcast(left, lanes)
        return tirx.BufferStore(store.buffer, tirx.BufferLoad(store.buffer, at) + dots(lanes)(across, along), at)

    return [vector(first) for first in range(0, count, lanes)]


def lies_in_row(scope: Scope, at: Callable, width: int) -> bool:
    """Whether ``at(0)`` to ``at(width - 1)`` are contiguous loads."""
    first = scope.simplify(at(index(0)))
    if not isinstance(first, ir.TensorLoad):
        return False
    column = tirx.Var("column", str(index(0).ty.dtype))
    analyzer = sym.Analyzer()
    scope.analyzer.bind(column, ir.Range(index(0), index(width)))
    there = scope.simplify(at(column))
    *outer, last = (scope.index(b - a) for a, b in zip(first.indices, there.indices, strict=True))
    return all(analyzer.can_prove_equal(each, index(0)) for each in outer) and analyzer.can_prove_equal(last, column)


def vector_of(load, lanes: int):
    """Return the vector of pairs that begins with a load; pairs of bytes are widened to 16-bit integers."""
    *outer, last = load.indices
    vector = tirx.BufferLoad(load.source, [*outer, tirx.Ramp(last, index(1), lanes)])
    if str(load.ty.dtype) != BYTES:
        return vector
    return tirx.reinterpret(f"int8x{2 * lanes}", vector).astype(f"int16x{2 * lanes}")

# SPDX-License-Identifier: Apache-2.0
"""The instructions of CPUs that multiply vectors of packed integers (`ir.packings`) and add up what belongs together.

On processors with VNNI, LLVM fuses the one for pairs with the addition to a sum into one instruction. The one for quads
adds to a sum itself; for processors without it there is `split_quads`. Processors of Arm have one for quads where they
have the feature i8mm, and one for bytes of one sign with dotprod. `_DOTS` is the table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ...ir.kernel import is_own, substitute
from ...ir.packings import PAIRS, QUADS, Packing, packed_factors
from ...ir.pairs import BYTES, INTEGER, widened
from ...ir.walk import contains, loads
from ..core.nest import Scope, index
from .params import CpuParams

_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_BYTE_PAIRS = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}
_QUADS = {
    16: "llvm.x86.avx512.vpdpbusd.512",
    8: "llvm.x86.avx512.vpdpbusd.256",
    4: "llvm.x86.avx512.vpdpbusd.128",
}
_ARM_LANES = 4  # sums of a vector: by definition of NEON
_ARM_QUADS, _ARM_UNSIGNED = "llvm.aarch64.neon.usdot", "llvm.aarch64.neon.udot"
# Four bytes of 128, which turn signed bytes into unsigned ones and back, as an int32: by definition of its signs.
_OFFSET = 0x80808080 - (1 << 32)


def dot_pieces(width: int, lanes: int) -> list[tuple[int, int]] | None:
    """Return (first column, columns) of the vectors that cover some columns, the widest ones first; None if none do."""
    pieces, first = [], 0
    while first < width and lanes >= min(_PAIRS):
        while width - first >= lanes:
            pieces.append((first, lanes))
            first += lanes
        lanes //= 2
    return pieces if first == width else None


def has_dot(packing: str, params: CpuParams) -> bool:
    """Whether the processor has a dot product for its widest vectors of a packing, by name."""
    return _dot(packing, params) is not None


def _dot(packing: str, params: CpuParams) -> _Dot | None:
    return next((d for d in _DOTS if d.packing == packing and d.features.get(params.lanes) in params.features), None)


def has_byte_pairs(params: CpuParams) -> bool:
    """Whether the processor multiplies vectors of pairs of bytes into sums of 16 bits (AVX2, AVX-512BW)."""
    return params.lanes in _BYTE_PAIRS and has_dot(PAIRS.name, params)


def has_byte_products(params: CpuParams) -> bool:
    """Whether the processor has instructions that multiply vectors of bytes: quads, or pairs."""
    return has_dot(QUADS.name, params) or has_byte_pairs(params)


def adder(packing: Packing, lanes: int, params: CpuParams) -> Callable | None:
    """Return a function that adds dot products to sums, None if the processor has no instruction for it.

    It takes vectors of `lanes` sums, of the left operand, and of the right one.
    """
    dot = _dot(packing.name, params)
    add = dot.added(lanes) if dot is not None else None
    if add is None or not packing.turned:
        return add
    return lambda sums, left, right: add(sums, right, left)


def _pairs_added(lanes: int) -> Callable | None:
    name = _PAIRS.get(lanes)
    if name is None:
        return None

    def add(sums, left, right):
        halves = (_as(each, "int16", 2 * lanes) for each in (left, right))
        return _in_order(sums + tirx.call_llvm_pure_intrin(f"{INTEGER}x{lanes}", name, *halves), lanes)

    return add


def _in_order(sums, lanes: int):
    """Return sums that LLVM does not reassociate.

    Of several steps in one loop it adds up the dot products first, which need more registers than there are. The fence
    is made for floats, and is no instruction.
    """
    kind = f"float32x{lanes}"
    fenced = tirx.call_llvm_pure_intrin(kind, "llvm.arithmetic.fence", tirx.reinterpret(kind, sums))
    return tirx.reinterpret(f"{INTEGER}x{lanes}", fenced)


def _quads_added(lanes: int) -> Callable | None:
    if lanes not in _QUADS:
        return None

    def add(sums, left, right):
        quarters = (_as(each, "int8", 4 * lanes) for each in (left, right))
        return tirx.call_llvm_pure_intrin(f"{INTEGER}x{lanes}", _QUADS[lanes], sums, *quarters)

    return add


def _arm_quads_added(lanes: int) -> Callable | None:
    if lanes != _ARM_LANES:
        return None
    return lambda sums, left, right: _arm(_ARM_QUADS, sums, left, right)


def _arm_unsigned_added(lanes: int) -> Callable | None:
    """Return the same for processors that multiply bytes of one sign only: ``u * s = u * (s + 128) - u * 128``.

    The last product is one of the left operand alone, so that LLVM computes it once for all columns of a row.
    """
    if lanes != _ARM_LANES:
        return None

    def add(sums, left, right):
        offset = tirx.Broadcast(tirx.const(_OFFSET, INTEGER), lanes)
        zeros = tirx.Broadcast(tirx.const(0, INTEGER), lanes)
        return _arm(_ARM_UNSIGNED, sums, left, right ^ offset) - _arm(_ARM_UNSIGNED, zeros, left, offset)

    return add


def _arm(name: str, sums, left, right):
    quarters = (_as(each, "int8", 4 * _ARM_LANES) for each in (left, right))
    return tirx.call_llvm_pure_intrin(f"{INTEGER}x{_ARM_LANES}", name, sums, *quarters)


@dataclass(frozen=True)
class _Dot:
    """A dot-product instruction.

    Attributes
    ----------
    packing : str
        Name of the packing.
    features : mapping
        Lanes of the processor's vectors -> LLVM's feature that has the instruction for them.
    added : callable
        Lanes -> a function that adds dot products to sums, as `adder` returns; None if there is none for so few.
    """

    packing: str
    features: Mapping[int, str]
    added: Callable[[int], Callable | None]


_DOTS = (
    _Dot(PAIRS.name, {16: "avx512bw", 8: "avx2", 4: "sse2"}, _pairs_added),
    _Dot(QUADS.name, {16: "avx512vnni", 8: "avxvnni", 4: "avxvnni"}, _quads_added),
    _Dot(QUADS.name, {_ARM_LANES: "i8mm"}, _arm_quads_added),
    _Dot(QUADS.name, {_ARM_LANES: "dotprod"}, _arm_unsigned_added),
)
"""Of several for one packing, the first that the processor has is taken."""


def bytes_added(sums, unsigned, signed, lanes: int, dots: Callable | None):
    """Return sums plus the products of vectors of unsigned and signed bytes.

    Parameters
    ----------
    sums : expression
        Of `lanes` sums of four products in 32 bits, or of twice as many sums of two products in 16 bits.
    unsigned, signed : expression
        Vectors of quads; without `dots`, the unsigned bytes are below 16.
    dots : callable or None
        Adds four products to each sum (`adder` of quads), where the processor does so.
    """
    if dots is not None:
        return dots(sums, unsigned, signed)
    quarters = (_as(each, "int8", 4 * lanes) for each in (unsigned, signed))
    return sums + tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", _BYTE_PAIRS[lanes], *quarters)


def shorts_added(sums, shorts, factor: int, lanes: int):
    """Return sums in 32 bits plus the sums of two neighbours in 16 bits, times a factor."""
    times = tirx.Broadcast(tirx.const(factor, "int16"), 2 * lanes)
    return sums + tirx.call_llvm_pure_intrin(f"{INTEGER}x{lanes}", _PAIRS[lanes], shorts, times)


def _as(vector, dtype: str, lanes: int):
    """Return the bits of a vector as one of another type."""
    kind = f"{dtype}x{lanes}"
    return vector if str(vector.ty.dtype) == kind else tirx.reinterpret(kind, vector)


def sums_of_dots(store: tirx.BufferStore, lane, count: int, params: CpuParams) -> list[tirx.BufferStore] | None:
    """Return ``sums[.., lane] += dot(left, right[.., lane])`` as vectors, None if the store has another form.

    Parameters
    ----------
    lane : tirx.Var
        From 0 to `count` - 1, a multiple of a vector's lanes.
    """
    total, lanes, (*_, place) = store.value, params.lanes, store.indices
    found = packed_factors(total.b) if isinstance(total, tirx.Add) else None
    if found is None or count % lanes or not place.same_as(lane):
        return None
    packing, factors = found
    if not isinstance(total.a, ir.TensorLoad) or not is_own(total.a, store):
        return None
    left, right = sorted(factors, key=lambda each: contains(each, ir.Var, lane.same_as))
    add = adder(packing if left.same_as(factors[0]) else packing.turn(), lanes, params)
    outer = loads(right)[0].indices[:-1] if isinstance(right, ir.TensorLoad) else [lane]
    if add is None or any(contains(each, ir.Var, lane.same_as) for each in (left, *outer)):
        return None
    one, zero = (substitute(right.indices[-1], {lane: index(at)}) for at in (1, 0))
    if not sym.Analyzer().can_prove_equal(one - zero, index(1)):
        return None

    def vector(first: int) -> tirx.BufferStore:
        at = [*store.indices[:-1], tirx.Ramp(index(first), index(1), lanes)]
        along = vector_of(substitute(right, {lane: index(first)}), lanes)
        return tirx.BufferStore(
            store.buffer, add(tirx.BufferLoad(store.buffer, at), tirx.Broadcast(widened(left), lanes), along), at
        )

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
    """Return the vector of packed integers that begins with a load; pairs of bytes are widened to 16-bit integers."""
    *outer, last = load.indices
    vector = tirx.BufferLoad(load.source, [*outer, tirx.Ramp(last, index(1), lanes)])
    if str(load.ty.dtype) != BYTES:
        return vector
    return tirx.reinterpret(f"int8x{2 * lanes}", vector).astype(f"int16x{2 * lanes}")

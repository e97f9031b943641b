# SPDX-License-Identifier: Apache-2.0
"""Quads whose bytes are neighbours in memory are words: one load of 32 bits, in place of four loads and shifts.

    quad(x[i, 4 * k], x[i, 4 * k + 1], x[i, 4 * k + 2], x[i, 4 * k + 3])     ->     word[i, k]

The rule for products plans with `word`, a tensor of 32-bit integers over the same memory, so that an operand of bytes
is read in place as one of floats is. The plan alone has that tensor: `as_bytes` replaces its loads by those of four
bytes, whose bits are one number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import ir, sym, tirx

from ..._tvm import mapped
from ...ir.index_map import function_name
from ...ir.kernel import shape_of
from ...ir.packings import QUADS, numbers_of_quad, packed_factors
from ...ir.pairs import INTEGER, numbers_of_pair, pair_of_bytes, pair_of_unsigned_bytes
from ...ir.walk import collect, loads
from .contraction import Contraction
from .expressions import uses
from .nest import index

_BYTES = ("int8", "uint8")
_PAIRS = {"int8": ("int16", pair_of_bytes), "uint8": ("uint16", pair_of_unsigned_bytes)}
"""Type of two neighbouring bytes -> that of their bits, and what makes a pair of these."""


def load_of(operand):
    """Return the load in an operand that is a load or a cast of one; else None."""
    inner = operand.value if isinstance(operand, tirx.Cast) else operand
    return inner if isinstance(inner, ir.TensorLoad) else None


def with_words(contraction: Contraction) -> Contraction:
    """Return a contraction whose operands are words where they are quads of neighbouring bytes."""
    if contraction.packing is None or contraction.packing.numbers != QUADS.numbers:
        return contraction
    sides, views = {}, dict(contraction.words)
    for side in ("left", "right"):
        found = word_of(getattr(contraction, side), contraction.reduction.extents)
        if found is not None:
            sides[side], source = found
            views[sides[side].source] = source
    return replace(contraction, words=views, **sides) if sides else contraction


def word_of(value, extents: Mapping):
    """Return ``(load of a word, the tensor of bytes)`` for a quad of neighbouring bytes; None for anything else.

    Parameters
    ----------
    extents : mapping
        Iterator -> extent, of all iterators in the indices.
    """
    numbers = numbers_of_quad(value)
    found = [load_of(each) for each in numbers or ()]
    if not found or any(load is None or str(load.ty.dtype) not in _BYTES for load in found):
        return None
    first, shape = found[0], shape_of(found[0].source)
    analyzer, count = _analyzer(extents), QUADS.numbers
    if not shape or shape[-1] % count or not all(_follows(first, load, n, analyzer) for n, load in enumerate(found)):
        return None
    *outer, last = first.indices
    last = analyzer.simplify(tirx.floordiv(last, index(count)))
    if not analyzer.can_prove_equal(last * index(count), first.indices[-1]):
        return None
    sizes = [*shape[:-1], shape[-1] // count]
    word = tirx.decl_buffer([index(size) for size in sizes], INTEGER, f"{first.source.name}_words", layout=None)
    return tirx.BufferLoad(word, [*outer, last]), first.source


def _analyzer(extents: Mapping) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    for var, extent in extents.items():
        analyzer.bind(var, ir.Range(index(0), index(int(extent))))
    return analyzer


def _follows(first, load, number: int, analyzer: sym.Analyzer) -> bool:
    """Whether a load is of the byte `number` places after the first one."""
    if not load.source.same_as(first.source):
        return False
    places = zip(load.indices, (*first.indices[:-1], first.indices[-1] + index(number)), strict=True)
    return all(analyzer.can_prove_equal(a, b) for a, b in places)


def joined(body: tirx.Stmt) -> tirx.Stmt:
    """Return the statements of a kernel with words in place of quads of neighbouring bytes, as padded copies have."""
    either = collect(body, tirx.BitwiseOr)
    quads = [each for each in either if numbers_of_quad(each) is not None]
    extents = {loop.loop_var: loop.extent for loop in collect(body, tirx.For) if isinstance(loop.extent, tirx.IntImm)}
    if not quads:
        return _pairs_joined(body, either, extents)
    found = {each: word for each in quads if (word := word_of(each, extents)) is not None}
    words = {load.source: source for load, source in found.values()}
    changed = mapped(body, (tirx.BitwiseOr, lambda each: found[each][0] if each in found else each))
    return as_bytes(changed, words)


def _pairs_joined(body: tirx.Stmt, either: Sequence, extents: Mapping) -> tirx.Stmt:
    """Return statements with one load for each pair of neighbouring bytes, of which LLVM makes vectors.

    It makes none of two loads that are two bytes from those of the next pair.
    """
    analyzer = _analyzer(extents)
    found = {each: load for each in either if (load := _first_of_pair(each, analyzer)) is not None}
    if not found:
        return body

    def whole(each):
        load = found.get(each)
        if load is None:
            return each
        *outer, last = load.indices
        kind, made = _PAIRS[str(load.ty.dtype)]
        return made(tirx.reinterpret(kind, tirx.BufferLoad(load.source, [*outer, tirx.Ramp(last, index(1), 2)])))

    def loop(each):
        lanes = each.kind == tirx.ForKind.VECTORIZED and any(
            uses(place, [each.loop_var])
            for one in collect(each.body, tirx.BitwiseOr)
            if one in found
            for place in found[one].indices
        )
        return tirx.For(each.loop_var, each.min, each.extent, tirx.ForKind.SERIAL, each.body) if lanes else each

    return mapped(mapped(body, (tirx.For, loop)), (tirx.BitwiseOr, whole))


def _first_of_pair(value, analyzer: sym.Analyzer):
    """Return the load of the first byte, if a value is a pair of neighbouring bytes in this order; else None."""
    numbers = numbers_of_pair(value)
    first, second = (load_of(each) for each in numbers or (None, None)) if numbers else (None, None)
    known = first is not None and second is not None and str(first.ty.dtype) in _BYTES
    return first if known and _follows(first, second, 1, analyzer) else None


def dots_in_vectors(body: tirx.Stmt) -> tirx.Stmt:
    """Return a statement in which dot products of two scalar quads are sums over vectors of four bytes.

    LLVM makes one shift, with a count above 31 in the lanes that it does not use, of masks and shifts of several scalar
    quads, and takes those lanes for zeros where the instruction gives the sign (docs/tvm-issues.md). Lanes of
    vectorized loops are vectors already, of one operation each.
    """
    loops = [loop for loop in collect(body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    vectors = {each for loop in loops for each in collect(loop, tirx.Add)}

    def of_vectors(each):
        found = packed_factors(each) if each not in vectors and each.ty.dtype.lanes == 1 else None
        if found is None or found[0].numbers != QUADS.numbers:
            return each
        count = QUADS.numbers
        unsigned, signed = (
            tirx.reinterpret(f"{kind}x{count}", side).astype(f"{INTEGER}x{count}")
            for kind, side in zip(_BYTES[::-1], found[1], strict=True)
        )
        return tirx.call_llvm_pure_intrin(INTEGER, "llvm.vector.reduce.add", unsigned * signed)

    return mapped(body, (tirx.Add, of_vectors))


def as_bytes(body: tirx.Stmt, words: Mapping) -> tirx.Stmt:
    """Return a statement with loads of words as loads of bytes; `words` is word tensor -> tensor of bytes.

    A vectorized loop whose lanes are different words becomes a serial one: TVM does not know that a vector of bytes is
    a shorter one of words.
    """
    if not words:
        return body

    def load(each):
        source = words.get(each.source)
        return each if source is None else _bits(source, each.indices)

    def address(call):
        given = call.args[0] if function_name(call) == "address_of" else None
        if not isinstance(given, ir.TensorLoad) or given.source not in words:
            return call
        *outer, last = given.indices
        return tirx.address_of(tirx.BufferLoad(words[given.source], [*outer, last * index(QUADS.numbers)]))

    def loop(each):
        if each.kind != tirx.ForKind.VECTORIZED or not _differ(each, words):
            return each
        return tirx.For(each.loop_var, each.min, each.extent, tirx.ForKind.SERIAL, each.body)

    return mapped(mapped(body, (tirx.For, loop), (ir.Call, address)), (ir.TensorLoad, load))


def _differ(loop: tirx.For, words: Mapping) -> bool:
    """Whether lanes of a vectorized loop load different words."""
    found = [place for each in loads(loop.body) if each.source in words for place in each.indices]
    return any(uses(place, [loop.loop_var]) for place in found)


def _bits(source, places: Sequence):
    """Return the bits of four bytes, or of four for each lane of a vector, as integers."""
    *outer, last = places
    count = index(QUADS.numbers)
    first, lanes = (last.base, int(last.lanes)) if isinstance(last, tirx.Ramp) else (last, 1)
    along = tirx.Ramp(first * count, index(1), QUADS.numbers * lanes)
    kind = INTEGER if lanes == 1 else f"{INTEGER}x{lanes}"
    return tirx.reinterpret(kind, tirx.BufferLoad(source, [*outer, along]))

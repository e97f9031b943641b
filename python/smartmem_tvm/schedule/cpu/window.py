# SPDX-License-Identifier: Apache-2.0
"""Reductions in register tiles along the output's fastest axis on a CPU: convolution, pooling, sums over outer axes.

    parallel for the outer iterators:
      for tiles of `height` x `width` of the last two:
        acc[height, width] = init                       registers
        for r in the reduction: acc[i, j] = combine(acc[i, j], term(i, j, r))
        out = finish(acc)

A long sum of floats is computed as a sum of partial sums, because a number that is added to one a thousand times as
large loses three digits.

Any single reduction has this form, with its reduction iterators as the window. Windows need not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tvm import tirx

from ...ir.blends import branches
from ...ir.kernel import Kernel, substitute
from ...ir.walk import loads
from ..core.decisions import decide, declined
from ..core.expressions import Walk, memory_order, split_index, uses
from ..core.nest import PARALLEL, SERIAL, UNROLL, Scope, allocate, block, index, scratch, split_work, store
from ..core.positions import before_length
from ..core.reduction import Reduction, reduction_of
from .params import CpuParams
from .rule import CpuRule
from .tile import column_tiles

# Elements. Chosen: a stride of at most so many still reads a quarter of each cache line (strided pooling).
_NEAR = 4
# Steps of the innermost reduction loop, up to which it is unrolled. Chosen: windows of networks are mostly narrower.
_UNROLLED = 8
# Terms of a partial sum, and terms from which on a sum has partial sums. Means of 76,800 numbers in [1, 2) are off by
# 8.6e-6 as one sum and by 5.6e-7 with partial sums, in 0.99x of the time (240 x 320 x 16, one thread of AVX-512,
# 2026-11-27).
_PART, _LONG = 256, 1024


@dataclass(frozen=True)
class WindowChoice:
    """The choices for a window.

    Attributes
    ----------
    height, width : int
        The register tile, in results.
    lanes : int
        Results of one vector.
    unrolled : int
        The longest innermost loop of the reduction that is unrolled.
    tasks : int
        Wanted number of tasks; a single one runs on the calling thread.
    """

    height: int
    width: int
    lanes: int
    unrolled: int
    tasks: int


class Window(CpuRule):
    """The rule for any single reduction; its operands are contiguous along the output's fastest axis."""

    def plan(self, kernel: Kernel, params: CpuParams) -> _WindowNest | None:
        """Return the tiled reduction, or None if the kernel is not one reduction with an epilogue in place."""
        reduction = reduction_of(kernel)
        if reduction is None:
            return declined("not one reduction with an epilogue in place")
        if _runs_along_rows(reduction):
            return declined("an operand lies along the terms of the sum, and none along the results")
        return _WindowNest(reduction, params)

    def emit(self, plan: _WindowNest) -> tirx.Stmt:
        """Return the loop nest."""
        return plan.kernel()


def _runs_along_rows(reduction: Reduction) -> bool:
    """Whether an operand is contiguous along a reduction iterator but none is along the output's fastest iterator.

    An operand that is the same for all terms of a result, such as a bias, does not count, as it is loaded once.
    """
    walk = Walk(reduction.extents)
    fastest = [v for v in reduction.spatial if walk.stride(reduction.output, reduction.indices, v) == 1]
    across, along = False, False
    for load in loads(reduction.term):
        if not uses(load, reduction.reduce):
            continue
        across |= any(0 < (walk.load_stride(load, v) or 0) <= _NEAR for v in fastest)
        along |= any(walk.load_stride(load, v) == 1 for v in reduction.reduce)
    return along and not across


@dataclass(eq=False)
class _WindowNest:
    reduction: Reduction
    params: CpuParams

    def __post_init__(self):
        r, p = self.reduction, self.params
        walk = Walk(r.extents)
        order = memory_order(r.spatial, r.extents, r.output, r.indices)
        self.outer, self.down, self.across = order[:-2], order[-2:-1], order[-1:]
        self.columns = r.extents[self.across[0]] if self.across else 1
        self.lines = r.extents[self.down[0]] if self.down else 1
        self.choice = decide("window", self._choice(), **self._facts())
        self.height, self.width = self.choice.height, self.choice.width
        self.params = replace(p, lanes=self.choice.lanes)
        self.scope = Scope()
        self.scalar = branches(r.term) or any(
            (walk.load_stride(load, var) or 0) > 1 for load in loads(r.term) for var in self.across
        )

    def _choice(self) -> WindowChoice:
        p = self.params
        width = min(self.columns // p.lanes, p.window_vectors) * p.lanes or self.columns
        height = min(self.lines, max(1, p.window_vectors // -(-width // p.lanes)))
        tasks = p.tasks if self.reduction.work >= p.serial_below else 1
        return WindowChoice(height, width, p.lanes, _UNROLLED, tasks)

    def _facts(self) -> dict[str, int]:
        extents = self.reduction.extents
        last = extents[self.reduction.reduce[-1]] if self.reduction.reduce else 1
        sizes = {"columns": self.columns, "lines": self.lines, "last": last, "work": self.reduction.work}
        return {**sizes, **self.params.facts}

    def kernel(self) -> tirx.Stmt:
        """Return the loop nest."""
        extents = self.reduction.extents
        outer = 1
        for var in self.outer:
            outer *= extents[var]
        bands = -(-self.lines // self.height)
        parallel = self.choice.tasks > 1
        per, pieces = split_work(bands, -(-self.choice.tasks // outer))

        def task(t):
            place = split_index(tirx.floordiv(t, index(pieces)), self.outer, extents)
            first = tirx.floormod(t, index(pieces)) * per * self.height
            return self._bands(place, self.scope.analyzer.simplify(first), per, pieces)

        kind = PARALLEL if parallel and outer * pieces > 1 else SERIAL
        return self.scope.loop(outer * pieces, task, "task", kind)

    def _bands(self, place: dict, first, per: int, pieces: int) -> tirx.Stmt:
        whole = self.lines // self.height
        rest, statements = self.lines - whole * self.height, []
        if whole:
            count = per if whole == per * pieces else tirx.min(index(per), index(whole) - _div(first, self.height))
            statements.append(
                self.scope.loop(
                    count, lambda b: self._band(place, first + b * index(self.height), self.height), "band", most=per
                )
            )
        if rest:
            tail = self._band(place, index(whole * self.height), rest)
            if pieces > 1:
                last = index((pieces - 1) * per * self.height)
                tail = tirx.IfThenElse(first.equal(last), tail, None)
            statements.append(tail)
        return block(*statements)

    def _band(self, place: dict, line, height: int) -> tirx.Stmt:
        whole = self.columns // self.width
        statements = [
            self.scope.loop(
                whole, lambda c: self._tile(place, line, c * index(self.width), height, self.width), "strip"
            )
        ]
        column = whole * self.width
        for width in column_tiles(self.columns - column, self.params):
            statements.append(self._tile(place, line, index(column), height, width))
            column += width
        return block(*statements)

    def _tile(self, place: dict, line, column, height: int, width: int) -> tirx.Stmt:
        r = self.reduction
        acc = scratch([height * width], r.accumulator.ty.dtype, "acc")

        def point(i, j) -> dict:
            down = {self.down[0]: line + i} if self.down else {}
            across = {self.across[0]: column + j} if self.across else {}
            return {**place, **down, **across}

        def each(body) -> tirx.Stmt:
            if self.scalar:
                return self.scope.loop(height, lambda i: self.scope.loop(width, lambda j: self._simple(body, i, j)))
            return self.scope.loop(
                height, lambda i: self.scope.vectors(width, self.params.lanes, lambda j: body(i, j)), "i", UNROLL
            )

        def start(sums) -> tirx.Stmt:
            return each(lambda i, j: store(sums, r.init, i * width + j))

        def add(sums, term) -> tirx.Stmt:
            return each(lambda i, j: store(sums, r.combine(sums[i * width + j], term(i, j)), i * width + j))

        def terms(sums, at: dict) -> tirx.Stmt:
            return add(sums, lambda i, j: substitute(r.term, {**point(i, j), **at}))

        begin = start(acc)
        if self._is_long_sum(acc):
            part = scratch([height * width], acc.ty.dtype, "part")
            gather = add(acc, lambda i, j: part[i * width + j])
            total = self._parts(lambda nest: block(start(part), nest, gather), lambda at: terms(part, at))
            total = allocate([part], total)
        else:
            total = self._reduce(lambda at: terms(acc, at))
        first = self.scope.simplify(r.store(r.init, point(index(0), index(0))))
        if not branches(r.finish):
            finish = each(lambda i, j: r.store(acc[i * width + j], point(i, j)))
            return before_length(first, allocate([acc], block(begin, total, finish)))
        done = scratch([height, width], acc.ty.dtype, "done")
        spill = each(lambda i, j: store(done, acc[i * width + j], i, j))
        finish = self.scope.loop(
            height,
            lambda i: self.scope.loop(width, lambda j: self.scope.simplify(r.store(done[i, j], point(i, j))), "j"),
        )
        return before_length(first, allocate([acc, done], block(begin, total, spill, finish)))

    def _is_long_sum(self, acc) -> bool:
        r = self.reduction
        floats = str(acc.ty.dtype).startswith("float")
        return (
            floats and prod(r.extents[v] for v in r.reduce) >= _LONG and isinstance(r.combine(acc[0], acc[0]), tirx.Add)
        )

    def _parts(self, around: Callable, body: Callable) -> tirx.Stmt:
        """Return loops over all terms; `around` wraps the inner ones, a partial sum of at most `_PART` terms."""
        vars_, extents = self.reduction.reduce, self.reduction.extents
        kept = len(vars_)
        while kept and prod(extents[v] for v in vars_[kept - 1 :]) <= _PART:
            kept -= 1
        outer, inner = vars_[:kept], vars_[kept:]
        if inner:
            return self._nest(outer, lambda at: around(self._nest(inner, lambda more: body({**at, **more}))))
        *outer, last = outer
        length, count = extents[last], -(-extents[last] // _PART)

        def piece(at: dict, number) -> tirx.Stmt:
            first = number * index(_PART)
            size = _PART if length % _PART == 0 else tirx.min(index(_PART), index(length) - first)
            return around(self.scope.loop(size, lambda k: body({**at, last: first + k}), "r", most=_PART))

        return self._nest(outer, lambda at: self.scope.loop(count, lambda number: piece(at, number), "part"))

    def _reduce(self, body) -> tirx.Stmt:
        return self._nest(self.reduction.reduce, body)

    def _nest(self, vars_: Sequence, body: Callable) -> tirx.Stmt:
        extents, reduced = self.reduction.extents, self.reduction.reduce

        def kind(var):
            return UNROLL if var.same_as(reduced[-1]) and extents[var] <= self.choice.unrolled else SERIAL

        return self.scope.nest(vars_, extents, body, kind=kind)

    def _simple(self, body, i, j) -> tirx.Stmt:
        return self.scope.simplify(body(i, j))


def _div(value, by: int):
    return tirx.floordiv(value, index(by))

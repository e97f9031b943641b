# SPDX-License-Identifier: Apache-2.0
"""A sliding window (depthwise convolution, pooling): a thread computes neighbours, and loads shared inputs once.

    thread for each tile of results:
      acc[tile] = init                                                     registers
      for r in the reduction, its last iterators unrolled:
        load each distinct value that the terms of the tile need           registers
        acc[p] = combine(acc[p], term(p, r))
      out = finish(acc)

Two values are the same if their expressions are equal, so that strides, dilation, padding and any other index map need
no cases of their own: the channels of a group share inputs as neighbouring pixels share weights. Textures are read and
written in whole texels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod

from tvm import ir, tirx

from ....analysis.row_chain import factors
from ....ir.kernel import substitute
from ....planner.texture_form import TEXEL
from ...core.expressions import split_index, uses
from ...core.instances import Alike, Instances
from ...core.nest import VECTOR, Scope, allocate, block, index, on_chip, store
from ...core.reduction import Reduction
from ..guards import guard
from ..launch import launch, registers
from ..sums import Sums, factor_type
from .texels import runs_along_texels
from .window_tiles import written_out


class SlideNest:
    """The loop nest of a reduction.

    Parameters
    ----------
    order : sequence of tirx.Var
        Spatial iterators, slowest in memory first.
    tile : mapping of tirx.Var to int
        Results of a thread along spatial iterators; each divides the extent.
    taps : int
        Most terms that are unrolled.
    threads : int
        Threads of a thread block.
    texel : sequence of tirx.Var
        Last iterators of `order` that run over a texel of the result: one thread computes it, and one store writes it.
    """

    def __init__(self, reduction: Reduction, order: tuple, tile: Mapping, taps: int, threads: int, texel: tuple = ()):
        self.reduction, self.order, self.tile = reduction, order, dict(tile)
        self.threads, self.scope, self.texel = threads, Scope(), texel
        self.dtype = reduction.accumulator.ty.dtype
        self.taps = written_out(reduction, taps)
        self.loops = reduction.reduce[: len(reduction.reduce) - len(self.taps)]
        self.factors = factors(reduction.term)
        self.held = factor_type(*self.factors, total=str(self.dtype))

    def kernel(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        extents = {v: self.reduction.extents[v] // self.tile.get(v, 1) for v in self.order}
        total = prod(extents.values())
        threads = min(self.threads, total)
        blocks = -(-total // threads)

        def thread(g, t):
            flat = g * index(threads) + t
            at = split_index(flat, self.order, extents)
            first = {v: at[v] * index(self.tile.get(v, 1)) for v in self.order}
            fits = [] if total % threads == 0 else [self.scope.analyzer.simplify(flat < index(total))]
            return guard(fits, self._thread(first))

        return launch(self.scope, blocks, threads, thread)

    def _thread(self, first: dict) -> tirx.Stmt:
        r = self.reduction
        tiled = [v for v in self.order if v in self.tile]
        points = list(product(*(range(self.tile[v]) for v in tiled)))
        sums = Sums(self.scope, len(points), self.held, str(self.dtype), "acc")
        acc = sums.total

        def where(point: Sequence[int]) -> dict:
            return {**first, **{v: first[v] + index(offset) for v, offset in zip(tiled, point, strict=True)}}

        start = [store(acc, r.init, n) for n in range(len(points))]
        total = self._reduce(lambda at: sums.around(self._terms(sums.few, points, _Values(self, tiled, where, at))))
        run = prod(self.tile[v] for v in self.texel)
        end = [self._finish(acc, n, where(points[n]), run) for n in range(0, len(points), run)]
        return allocate(sums.buffers, block(*start, total, *end))

    def _finish(self, acc, first: int, place: dict, run: int) -> tirx.Stmt:
        """Store `run` results, which are one element or one texel."""

        def one(v):
            within = split_index(v, self.texel, self.tile)
            return self.scope.simplify(self.reduction.store(acc[first + v], {**place, **within}))

        return self.scope.loop(run, one, "v", VECTOR)

    def _reduce(self, body) -> tirx.Stmt:
        return self.scope.nest(self.loops, self.reduction.extents, body)

    def _terms(self, acc, points: list, values: _Values) -> tirx.Stmt:
        """Return the unrolled terms; each value is loaded before the first term that needs it."""
        plan = []
        for tap in product(*(range(self.reduction.extents[v]) for v in self.taps)):
            terms = [[values.place(f, (*point, *tap)) for f in range(len(self.factors))] for point in points]
            plan.append((values.take_new(), terms))
        held = registers(values.count, self.held, "value")
        statements = []
        for new, terms in plan:
            statements += [self._hold(held, *each) for each in new]
            statements.append(on_chip(lambda terms=terms: self._added(acc, held, terms)))
        return allocate([held], block(*statements))

    def _added(self, acc, held, terms: list) -> tirx.Stmt:
        """Add one term to each sum: a product of values in the registers `places`."""
        products = [reduce(lambda a, b: a * b, [held[p] for p in places]) for places in terms]
        return block(*(store(acc, self.reduction.combine(acc[n], term), n) for n, term in enumerate(products)))

    def _hold(self, held, place: int, value, lane) -> tirx.Stmt:
        """Load a value, or the four values of a texel over which `lane` runs, into registers."""
        if lane is None:
            return store(held, value, place)
        return self.scope.loop(TEXEL, lambda v: store(held, substitute(value, {lane: v}), place + v), "v", VECTOR)


class _Values:
    """Registers for the distinct values of the factors of a term; those of one texel are contiguous.

    Offsets are those of the results of a thread along `tiled`, and then those of the unrolled terms.
    """

    def __init__(self, nest: SlideNest, tiled: list, where: Callable, at: dict):
        self.nest, self.where, self.at, self.neighbours = nest, where, at, len(tiled)
        self.count = 0
        self._new: list = []
        self._by_offset: dict = {}
        self._by_value: dict[int, int] = {}
        vars_ = [*tiled, *nest.taps]
        self.lanes = [self._lane(factor) for factor in nest.factors]
        self.numbers = [next((n for n, v in enumerate(vars_) if v is lane), None) for lane in self.lanes]
        used = [uses(factor, vars_) for factor in nest.factors]
        self.relevant = [
            [n for n, v in enumerate(vars_) if v is not lane and any(v is each for each in of_factor)]
            for of_factor, lane in zip(used, self.lanes)
        ]
        for lane in {lane for lane in self.lanes if lane is not None}:
            nest.scope.analyzer.bind(lane, ir.Range(index(0), index(TEXEL)), allow_override=True)
        self.moved = [[n for n, v in enumerate(vars_) if v is not lane] for lane in self.lanes]
        alike = Alike()
        self.instances = [
            Instances(nest.scope, factor, [vars_[n] for n in moved], alike)
            for factor, moved in zip(nest.factors, self.moved, strict=True)
        ]

    def place(self, factor: int, offsets: Sequence[int]) -> int:
        """Return the register of a factor at a point of the tile and a term of the sum."""
        lane = self.numbers[factor]
        key = (factor, *[offsets[n] for n in self.relevant[factor]])
        if key not in self._by_offset:
            self._by_offset[key] = self._register(self._value(factor, offsets), self.lanes[factor])
        return self._by_offset[key] + (0 if lane is None else offsets[lane])

    def take_new(self) -> list[tuple]:
        """Return (register, value, lane) of the registers that are new since the last call; see `SlideNest._hold`."""
        new, self._new = self._new, []
        return new

    def _lane(self, factor):
        """Return the iterator along which the values of a factor are those of a texel; None if there is none."""
        nest = self.nest
        whole = [v for v in (*nest.texel, *nest.taps) if nest.reduction.extents[v] == TEXEL]
        return next((v for v in whole if runs_along_texels(factor, v, nest.reduction.extents)), None)

    def _value(self, factor: int, offsets: Sequence[int]):
        def where() -> dict:
            point, tap = offsets[: self.neighbours], offsets[self.neighbours :]
            terms = {v: index(offset) for v, offset in zip(self.nest.taps, tap, strict=True)}
            lane = self.lanes[factor]
            return {**self.where(point), **self.at, **terms, **({} if lane is None else {lane: lane})}

        return self.instances[factor].at([offsets[n] for n in self.moved[factor]], where)

    def _register(self, value, lane) -> int:
        known = self._by_value.get(id(value))  # values that are equal are the same object
        if known is not None:
            return known
        first = self._by_value[id(value)] = self.count
        self._new.append((first, value, lane))
        self.count += 1 if lane is None else TEXEL
        return first

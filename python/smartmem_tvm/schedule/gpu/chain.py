# SPDX-License-Identifier: Apache-2.0
"""Chains of small stages on a GPU: one launch, whose intermediate results stay on chip.

for step in range(steps):                 each thread:  its part of the chain, in registers
a = f(h, x[step]);  h = g(a)          or each thread block: its part, in shared memory, a barrier between stages
"""

from __future__ import annotations

from math import prod

from tvm import ir, tirx
from tvm.target import Target

from ...analysis.chain_cost import OWN_POINTS, SLACK, most_shares, plan_of, sketch
from ...ir.chain import Chain, places, points, read_chain, reads, terms
from ...ir.kernel import Stage, is_own, shape_of, substitute
from ...ir.sizes import data_bytes, number_bytes
from ...ir.walk import loads
from ...target import Limits, is_gpu
from ..core.decisions import declined
from ..core.expressions import replace_loads, split_index, uses
from ..core.nest import SERIAL, UNROLL, Scope, allocate, block, index, index_type, store
from ..core.reduction import combiner_of_parts
from ..core.rule import FinishedSchedule, Rule, finished
from .chain_units import Unit, buffers_of, same, units_of
from .gemm.ptx import barrier
from .launch import launch, registers, when
from .occupancy import require_limits


class GpuChain(Rule):
    """The rule for chains: stages one after the other, in loops over steps, that one launch does."""

    def apply(self, func: tirx.PrimFunc, target: Target) -> FinishedSchedule | None:
        """Schedule `func`, or None if the target is no GPU or the kernel no chain."""
        if not is_gpu(target):
            return None
        chain = read_chain(func)
        if chain is None:
            return declined("no chain that merge-chains made")
        limits = Limits.of(target)
        with index_type("int64"):
            body = _ChainNest(chain, limits).kernel()
        written = FinishedSchedule.of(finished(func, _AsKernel(chain), body))
        require_limits(written.mod["main"], limits)
        return written


class _AsKernel:
    """The attributes of a kernel that `finished` reads: no intermediate result of a chain is in global memory."""

    def __init__(self, chain: Chain):
        self.outputs, self.intermediates = chain.outputs, ()


class _ChainNest:
    def __init__(self, chain: Chain, limits: Limits):
        self.chain, self.limits, self.scope = chain, limits, Scope()
        own = set(chain.own)
        self.plan = plan_of([sketch(stage) for stage in chain.stages], chain.own, limits)
        self.axes = self.plan.axes
        self.items = units_of(chain)
        self.units = [unit for item in self.items for unit in (item[1] if isinstance(item, tuple) else [item])]
        scope = "local" if self.plan.private else "shared"
        self.kept = {
            b: self._storage(b, scope) for b in dict.fromkeys(u.last.outputs[0] for u in self.units) if b in own
        }
        self.buffers = list(self.kept.values())
        self.room = limits.shared_bytes - sum(map(data_bytes, self.buffers)) - SLACK
        self.scratch: dict = {}  # type -> buffer of partial sums

    def _storage(self, buffer, scope: str):
        shape = [index(n) for dim, n in enumerate(shape_of(buffer)) if dim not in self.axes.get(buffer, ())]
        parts = [] if self.plan.private or self.plan.together == 1 else [index(self.plan.together)]
        whole = [*parts, *shape] or [index(1)]
        return tirx.decl_buffer(whole, str(buffer.dtype), f"{buffer.name}_kept", scope=scope, layout=None)

    # -- statements --------------------------------------------------------------------------------------------------

    def kernel(self) -> tirx.Stmt:
        """Return the whole loop nest."""
        return launch(self.scope, -(-self.plan.parts // self.plan.together), self.plan.threads, self._thread)

    def _thread(self, number, thread) -> tirx.Stmt:
        self.number, self.thread = number, thread
        body = block(*(self._item(item) for item in self.items))
        if self.plan.private:
            part = self._simple(number * index(self.plan.together) + thread)
            body = when(part < index(self.plan.parts) if self.plan.parts % self.plan.together else None, body)
        return allocate(self.buffers, body)

    def _item(self, item) -> tirx.Stmt:
        if isinstance(item, Unit):
            return self._unit(item)
        steps, units = item
        first, count = index(steps.first), index(steps.last - steps.first)
        self.scope.analyzer.bind(steps.var, ir.Range(first, index(steps.last)))
        return tirx.For(steps.var, first, count, SERIAL, block(*map(self._unit, units)))

    def _simple(self, expr):
        return self.scope.analyzer.simplify(expr)

    def _unit(self, unit: Unit) -> tirx.Stmt:
        rest = self._rest(unit.last)
        extents = {var: unit.last.extents[var] for var in rest}
        if self.plan.private:
            part = self._simple(self.number * index(self.plan.together) + self.thread)
            kind = UNROLL if prod(extents.values()) * terms(unit.stage) <= OWN_POINTS else SERIAL
            here = self._part(unit, part)

            def element(at: dict) -> tirx.Stmt:
                return self._element(unit, {**here, **at}, index(0))

            return self.scope.nest(rest, extents, element, "e", lambda _: kind)
        total = prod(extents.values())
        shares = self._shares(unit, total)
        done = self._shared_sum(unit, total, shares) if shares > 1 else [self._spread(unit, total)]
        # TVM inserts barriers itself, but overlooks accesses to float16 buffers that are stored and read as float32.
        barriers = [barrier() for _ in done] if any(map(self._is_short, buffers_of(unit))) else [None] * len(done)
        return block(*(each for pair in zip(done, barriers, strict=True) for each in pair))

    @staticmethod
    def _is_short(buffer) -> bool:
        return number_bytes(str(buffer.dtype)) == 2

    def _rest(self, stage: Stage) -> list:
        common = self._common(stage)
        return [var for var in stage.spatial if var not in common]

    def _common(self, stage: Stage) -> list:
        along = places(stage)
        return [along[dim] for dim in self.axes.get(stage.body.buffer, ())]

    def _part(self, unit: Unit, part) -> dict:
        """Return the indices of a part along the common axes."""
        common = self._common(unit.last)
        return split_index(part, common, {var: unit.last.extents[var] for var in common}) if common else {}

    def _spread(self, unit: Unit, total: int) -> tirx.Stmt:
        """Compute each element in one thread."""
        return self._rounds(total * self.plan.together, lambda e: self._at(unit, e, total, self._element))

    def _rounds(self, count: int, body) -> tirx.Stmt:
        threads = self.plan.threads

        def turn(i) -> tirx.Stmt:
            e = self._simple(i * index(threads) + self.thread)
            return when(e < index(count) if count % threads else None, body(e))

        return self.scope.loop(-(-count // threads), turn, "i")

    def _at(self, unit: Unit, e, total: int, make) -> tirx.Stmt:
        """Call `make` for the `e`-th element of a thread block: neighbouring threads write neighbouring elements."""
        rest, together = self._rest(unit.last), self.plan.together
        if together == 1:
            u, r = index(0), e
        elif self._is_last_common(unit.last):
            u, r = tirx.floormod(e, index(together)), tirx.floordiv(e, index(together))
        else:
            u, r = tirx.floordiv(e, index(total)), tirx.floormod(e, index(total))
        part = self._simple(self.number * index(together) + u)
        place = {**self._part(unit, part), **split_index(r, rest, unit.last.extents)}
        valid = part < index(self.plan.parts) if self.plan.parts % together else None
        return when(valid, make(unit, {var: self._simple(value) for var, value in place.items()}, self._simple(u)))

    def _is_last_common(self, stage: Stage) -> bool:
        walked = [dim for dim, var in enumerate(places(stage)) if var is not None]
        return bool(walked) and walked[-1] in self.axes.get(stage.body.buffer, ())

    # -- elements ----------------------------------------------------------------------------------------------------

    def _element(self, unit: Unit, place: dict, u) -> tirx.Stmt:
        """Compute one element and store it."""
        stage = unit.stage
        inner = self._inner(unit, place)
        if not stage.reduction:
            return self._stored(unit, place, u, self._value(stage.body.value, inner, u))
        total = registers(1, str(stage.body.buffer.dtype), "total")
        start = store(total, self._value(stage.init.value, inner, u), 0)
        extents = {var: stage.extents[var] for var in stage.reduction}

        def term(at: dict) -> tirx.Stmt:
            return store(total, self._value(stage.body.value, {**inner, **at}, u, stage, total), 0)

        sums = self.scope.nest(stage.reduction, extents, term, "k")
        return allocate([total], block(start, sums, self._stored(unit, place, u, total[index(0)])))

    @staticmethod
    def _inner(unit: Unit, place: dict) -> dict:
        """Return the point of the first stage of a unit, in its own iterators."""
        if unit.finish is None:
            return place
        pairs = zip(places(unit.stage), places(unit.finish), strict=True)
        return {mine: place[theirs] for mine, theirs in pairs if mine is not None}

    def _stored(self, unit: Unit, place: dict, u, value) -> tirx.Stmt:
        last = unit.last
        if unit.finish is not None:
            inner = unit.stage.body.buffer
            held = replace_loads(last.body.value, lambda load: value if load.source.same_as(inner) else None)
            value = self._value(held, place, u)
        at = [substitute(position, place) for position in last.body.indices]
        target = last.body.buffer
        kept = self.kept.get(target)
        if kept is None:
            return self.scope.simplify(tirx.BufferStore(target, value, at))
        return self.scope.simplify(tirx.BufferStore(kept, value, self._indices(target, at, u)))

    def _indices(self, buffer, at: list, u) -> list:
        """Return the indices into the on-chip copy of a buffer."""
        rest = [position for dim, position in enumerate(at) if dim not in self.axes.get(buffer, ())]
        parts = [] if self.plan.private or self.plan.together == 1 else [u]
        return [*parts, *rest] or [index(0)]

    def _value(self, value, place: dict, u, stage: Stage | None = None, total=None):
        """Return an expression of a stage at a point, with loads from on-chip buffers; its own sum is in `total`."""
        mine = [] if stage is None else [load for load in loads(value) if is_own(load, stage.body)]
        own = [substitute(load, place) for load in mine]

        def read(load):
            if any(load.source.same_as(each.source) and same(load.indices, each.indices) for each in own):
                return total[index(0)]
            kept = self.kept.get(load.source)
            return None if kept is None else tirx.BufferLoad(kept, self._indices(load.source, list(load.indices), u))

        return self.scope.simplify(replace_loads(substitute(value, place), read))

    # -- sums that threads share -------------------------------------------------------------------------------------

    def _shares(self, unit: Unit, total: int) -> int:
        """Return the number of threads that share a sum: a power of two, above 1 only if threads would idle."""
        stage = unit.stage
        most = most_shares(terms(stage))
        if most == 1 or combiner_of_parts(stage) is None:
            return 1
        size, room = number_bytes(str(stage.body.buffer.dtype)), self.room
        shares, count = 1, total * self.plan.together
        while (
            2 * shares <= most
            and 2 * shares * count <= self.plan.threads
            and terms(stage) >= 4 * shares
            and 2 * shares * count * size <= room
        ):
            shares *= 2
        return shares

    def _shared_sum(self, unit: Unit, total: int, shares: int) -> list[tirx.Stmt]:
        """Compute partial results of each sum in several threads, and then add them up in one thread per sum."""
        stage, combine = unit.stage, combiner_of_parts(unit.stage)
        count, dtype = total * self.plan.together, str(unit.stage.body.buffer.dtype)
        parts = self._parts(dtype)
        length, across = terms(stage), self._terms_lie_together(stage)

        def split(e) -> tuple:
            inner = shares if across else count
            quotient, rest = tirx.floordiv(e, index(inner)), tirx.floormod(e, index(inner))
            return (rest, quotient) if across else (quotient, rest)

        def part(e) -> tirx.Stmt:
            share, element = map(self._simple, split(e))

            def make(unit: Unit, place: dict, u) -> tirx.Stmt:
                inner = self._inner(unit, place)
                acc = registers(1, dtype, "part")
                start = store(acc, self._value(stage.init.value, inner, u), 0)

                def term(j) -> tirx.Stmt:
                    q = self._simple(j * index(shares) + share)
                    at = split_index(q, stage.reduction, stage.extents)
                    value = self._value(stage.body.value, {**inner, **at}, u, stage, acc)
                    return when(q < index(length) if length % shares else None, store(acc, value, 0))

                sums = self.scope.loop(-(-length // shares), term, "k")
                return allocate([acc], block(start, sums, store(parts, acc[index(0)], share * index(count) + element)))

            return self._at(unit, element, total, make)

        def whole(element) -> tirx.Stmt:
            def make(unit: Unit, place: dict, u) -> tirx.Stmt:
                acc = registers(1, dtype, "total")
                start = store(acc, parts[element], 0)

                def add(j) -> tirx.Stmt:
                    return store(acc, combine(acc[index(0)], parts[(j + index(1)) * index(count) + element]), 0)

                more = self.scope.loop(shares - 1, add, "j", UNROLL)
                return allocate([acc], block(start, more, self._stored(unit, place, u, acc[index(0)])))

            return self._at(unit, element, total, make)

        return [self._rounds(count * shares, part), self._rounds(count, whole)]

    def _parts(self, dtype: str):
        """Return a buffer for the partial results of the largest sum of a type; all sums of the type reuse it."""
        if dtype not in self.scratch:
            most = max(self._shares(u, n) * n for u, n in self._sums(dtype)) * self.plan.together
            self.scratch[dtype] = tirx.decl_buffer([index(most)], dtype, "parts", scope="shared", layout=None)
            self.buffers.append(self.scratch[dtype])
        return self.scratch[dtype]

    def _sums(self, dtype: str) -> list[tuple[Unit, int]]:
        found = [unit for unit in self.units if most_shares(terms(unit.stage)) > 1]
        alike = [unit for unit in found if str(unit.stage.body.buffer.dtype) == dtype]
        return [(unit, points(unit.last) // self.plan.parts) for unit in alike]

    @staticmethod
    def _terms_lie_together(stage: Stage) -> bool:
        """Whether the terms of a sum are innermost in memory in the largest tensor that it reads."""
        largest = max(reads(stage), key=lambda load: prod(shape_of(load.source)), default=None)
        if largest is None:
            return False
        last = [position for position in largest.indices if uses(position, [*stage.spatial, *stage.reduction])]
        return bool(last) and bool(uses(last[-1], stage.reduction))

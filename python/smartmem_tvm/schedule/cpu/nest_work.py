# SPDX-License-Identifier: Apache-2.0
"""The work of a scheduled loop nest on a CPU: the operations, loads and stores of its innermost loops.

The nest shows everything that a rule decided: recomputation, vectorised loops, accumulators in registers. So the nests
of all rules are counted in one way. Operations are counted in vectors where TVM or LLVM vectorise a loop, and in
elements where a condition, a gather or a division of an index by the loop variable prevents that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx

from ...ir.index_map import function_name, is_if_then_else, variables
from ...ir.walk import collect, contains, loads
from ..core.expressions import Walk, choices
from ..core.nest import PARALLEL, UNROLL, VECTOR
from .cost import BRANCH, ITERATION, Iteration, LoopStore, Operations
from .priced_work import Done, Threads

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_DIVIDED = (tirx.FloorDiv, tirx.FloorMod)
_CHEAP_CALLS = frozenset({"fabs", "reinterpret", "isnan", "floor", "ceil", "max", "min", "fma"})
_ROOTS = frozenset({"sqrt", "rsqrt"})
_PLAIN, _DIVISION, _FUNCTION = Operations(plain=1), Operations(divisions=1), Operations(functions=1)
_NEAR = 4  # elements: the stride up to which LLVM makes a vector by shuffles; assumed (2026-11-24), not measured


@dataclass(frozen=True)
class _Place:
    """A store in an innermost loop, and the unrolled and vectorised loops around it."""

    store: tirx.BufferStore
    loops: tuple[tirx.For, ...]


class NestWork:
    """The work of a nest.

    Parameters
    ----------
    lanes : int
        float32 values in a vector register.
    cores : int
        Threads that share a ``parallel`` loop.
    """

    def __init__(self, lanes: int, cores: int = 1):
        self.lanes, self.threads = lanes, Threads(cores)
        self.extents: dict = {}

    def of(self, body: tirx.Stmt, times: int = 1) -> list[Done]:
        """Return the work of the busiest thread, if the nest runs a number of times."""
        places = _places(body)
        if places is not None:
            return self._innermost(places, None, times)
        if isinstance(body, tirx.For):
            return self._loop(body, times)
        if isinstance(body, tirx.SeqStmt):
            return [done for each in body.seq for done in self.of(each, times)]
        if isinstance(body, s_tir.SBlockRealize):
            return self.of(body.block.body, times)
        if isinstance(body, tirx.IfThenElse):
            cases = [each for each in (body.then_case, body.else_case) if each]
            return [(times, BRANCH), *(done for each in cases for done in self.of(each, times))]
        inner = getattr(body, "body", None)
        return self.of(inner, times) if inner is not None else []

    def _loop(self, loop: tirx.For, times: int) -> list[Done]:
        self.extents[loop.loop_var] = most_of(loop.extent)
        places = _places(loop.body)
        if places is not None:
            return self._innermost(places, loop, times)
        times *= self._turns(loop)
        return [*self.of(loop.body, times), (times, ITERATION)]

    def _turns(self, loop: tirx.For) -> int:
        """Return the number of iterations of a loop on one thread."""
        extent = self.extents[loop.loop_var]
        return self.threads.rounds(extent) if loop.kind == PARALLEL else extent

    # -- innermost loops ---------------------------------------------------------------------------------------------

    def _innermost(self, places: Sequence[_Place], loop: tirx.For | None, times: int) -> list[Done]:
        for place in places:
            self.extents.update({each.loop_var: most_of(each.extent) for each in place.loops})
        alone = loop is not None and loop.kind != PARALLEL
        if alone and all(self._runs_in_vectors(place, loop.loop_var) for place in places):
            whole = (self._stored(_Place(p.store, (*p.loops, loop)), None, loop.loop_var) for p in places)
            return [(times, Iteration((each,))) for each in whole]
        running = loop.loop_var if loop is not None else None
        times *= self._turns(loop) if loop is not None else 1
        return [(times, Iteration(tuple(self._stored(place, running) for place in places))), (times, ITERATION)]

    def _runs_in_vectors(self, place: _Place, var) -> bool:
        """Whether LLVM vectorises a plain loop: each access has a constant stride, and there is no reduction."""
        accesses = _accesses(place.store)
        plain = not any(each.kind == VECTOR for each in place.loops)
        sums = any(load.source.same_as(place.store.buffer) for load in loads(place.store.value))
        if not plain or (sums and var not in variables([*place.store.indices])):
            return False
        return all(self.step(*each, var) is not None for each in accesses) and not _chooses_source(
            place.store.value, [var]
        )

    def _stored(self, place: _Place, running, vector=None) -> LoopStore:
        """Return the work of a store in one iteration of the loop over `running`."""
        store, extents = place.store, {each.loop_var: self.extents[each.loop_var] for each in place.loops}
        lanes = [each.loop_var for each in place.loops if each.kind == VECTOR or each.loop_var.same_as(vector)]
        accesses = _accesses(store)
        in_step = all(self.step(*each, v) is not None for each in accesses for v in lanes)
        in_vectors = bool(lanes) and in_step and not _chooses_source(store.value, lanes)
        steps = {v: -(-e // self.lanes) if v in lanes and in_vectors else e for v, e in extents.items()}
        times = math.prod(steps.values())
        varying = [*extents, *([] if running is None else [running])]
        work, read = _value(store.value, in_vectors, varying)
        own = [each for each in read if each.source.same_as(store.buffer)]
        sums = bool(own) and running is not None and running not in variables([*store.indices])
        shuffles = times * sum(self._shuffles(each, lanes) for each in accesses) if in_vectors else 0
        reads = [self._reads(load, steps, running) for load in read if not (sums and load in own)]
        still, streamed = (sum(number for number, moves in reads if moves == which) for which in (False, True))
        return LoopStore(times, work, in_vectors, shuffles, still, streamed, sums)

    def _shuffles(self, access: tuple, lanes: Sequence) -> int:
        """Return the shuffles that gather or scatter a vector whose elements are not contiguous."""
        apart = max((abs(self.step(*access, v)) for v in lanes), default=0)
        return 0 if apart <= 1 else apart if apart <= _NEAR else self.lanes

    def _reads(self, load, steps: dict, running) -> tuple[int, bool]:
        """Return how often a load runs in an iteration, and whether the next iteration loads something else.

        It runs once for all unrolled loops that it does not depend on.
        """
        used = variables([*load.indices])
        if running is not None and running not in used and not any(v in used for v in steps):
            return 0, False
        return math.prod(count for v, count in steps.items() if v in used), running in used

    def step(self, buffer, indices, var) -> int | None:
        """Return the stride of an access along `var`, in elements; None if it varies."""
        total = 0
        for at, extent in zip(indices, buffer.shape, strict=True):
            step = _linear_step(at, var)
            if step is None:
                return self._exact_step(buffer, indices, var)
            total = total * int(extent) + step
        return total

    def _exact_step(self, buffer, indices, var) -> int | None:
        known = {v: e for v, e in self.extents.items() if v in variables([*indices])}
        return Walk(known).stride(buffer, indices, var) if var in known else None


def most_of(extent) -> int:
    """Return the extent of a loop; where the last chunk is shorter, that of the other chunks."""
    if isinstance(extent, tirx.IntImm):
        return int(extent)
    whole = [int(each) for each in getattr(extent, "args", ()) or (extent.a, extent.b) if isinstance(each, tirx.IntImm)]
    return whole[0] if whole else 1


def _places(body: tirx.Stmt, loops: tuple = ()) -> list[_Place] | None:
    """Return the stores of statements whose loops are all unrolled or vectorised; None if some are not."""
    if isinstance(body, tirx.BufferStore):
        return [_Place(body, loops)]
    if isinstance(body, tirx.SeqStmt):
        found = [_places(each, loops) for each in body.seq]
        return None if any(each is None for each in found) else [place for each in found for place in each]
    if isinstance(body, tirx.For) and body.kind in (UNROLL, VECTOR):
        return _places(body.body, (*loops, body))
    return None


def _linear_step(expr, var) -> int | None:
    """Return the coefficient of `var` in a linear index; None if the index is not plainly linear."""
    if isinstance(expr, ir.Var):
        return int(expr.same_as(var))
    if isinstance(expr, tirx.Add | tirx.Sub):
        steps = _linear_step(expr.a, var), _linear_step(expr.b, var)
        if None in steps:
            return None
        return steps[0] + steps[1] if isinstance(expr, tirx.Add) else steps[0] - steps[1]
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        step = _linear_step(expr.a, var)
        return None if step is None else step * int(expr.b)
    return None if contains(expr, ir.Var, lambda each: each.same_as(var)) else 0


def _accesses(store: tirx.BufferStore) -> list[tuple]:
    """Return (buffer, indices) of a store and of all loads in its value."""
    return [(store.buffer, store.indices), *((load.source, load.indices) for load in loads(store.value))]


def _chooses_source(value, lanes: Sequence) -> bool:
    """Whether the lane decides from which of several tensors an element is loaded, which no mask can do."""
    found = choices(value)
    return any(all(map(loads, ways)) and any(v in lanes for v in variables(c)) for c, *ways in found)


def _value(expr, in_vectors: bool, varying: Sequence) -> tuple[Operations, list]:
    """Return the operations of an element, or of a vector of them, and its loads; of alternatives the longer one.

    A costly operation that depends on none of the `varying` variables runs once before the loop, and is free here.
    """
    if isinstance(expr, ir.TensorLoad):
        return Operations(places=0 if in_vectors else len(collect([*expr.indices], _DIVIDED))), [expr]
    if isinstance(expr, tirx.Select) or is_if_then_else(expr):
        ways = (expr.true_value, expr.false_value) if isinstance(expr, tirx.Select) else expr.args[1:]
        found = (_value(way, in_vectors, varying) for way in ways)
        work, read = max(found, key=lambda way: (way[0].cycles_in(in_vectors), len(way[1])))
        return work + Operations(conditions=1), read
    parts, own = _operation(expr)
    if own in (_DIVISION, _FUNCTION) and not any(v in varying for v in variables(expr)):
        own = Operations()
    found = [_value(part, in_vectors, varying) for part in parts]
    return sum((work for work, _ in found), own), [load for _, read in found for load in read]


def _operation(expr) -> tuple[list, Operations]:
    """Return the operands of an operation, and the operation itself; an addition to a product is free."""
    if isinstance(expr, ir.Call):
        name = function_name(expr)
        return list(expr.args), _PLAIN if name in _CHEAP_CALLS else _DIVISION if name in _ROOTS else _FUNCTION
    if isinstance(expr, tirx.Cast):
        return [expr.value], _PLAIN
    if isinstance(expr, _ARITHMETIC):
        fused = isinstance(expr, tirx.Add | tirx.Sub) and any(isinstance(each, tirx.Mul) for each in (expr.a, expr.b))
        return [expr.a, expr.b], _DIVISION if isinstance(expr, tirx.Div) else Operations() if fused else _PLAIN
    return [], Operations()

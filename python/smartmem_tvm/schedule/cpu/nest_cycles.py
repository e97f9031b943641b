# SPDX-License-Identifier: Apache-2.0
"""The time of a scheduled loop nest on a CPU, counted in the operations of its innermost loops.

The nest shows everything that a rule decided: recomputation, vectorised loops, accumulators in registers. So one model
counts the nests of all rules. An innermost loop, with its unrolled and vectorised loops, takes per iteration the
longest of

    its arithmetic and calls, two at a time;   its loads;   its stores;   the latency of the previous sum

each counted in vectors where TVM or LLVM vectorise it, and in elements where a condition, a gather or a division of an
index by the loop variable prevents that.
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
from .machine import (
    CONDITION_OF_ELEMENT,
    CONDITION_OF_VECTOR,
    DIVISION,
    FAR_LOAD,
    FMA_LATENCY,
    FMA_PER_CYCLE,
    FUNCTION_OF_ELEMENT,
    FUNCTION_OF_VECTOR,
    ITERATION,
    LOADS_PER_CYCLE,
    SHUFFLE,
)

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_DIVIDED = (tirx.FloorDiv, tirx.FloorMod)
_CHEAP_CALLS = frozenset({"fabs", "reinterpret", "isnan", "floor", "ceil", "max", "min", "fma"})
_ROOTS = frozenset({"sqrt", "rsqrt"})
_FUNCTION = {True: FUNCTION_OF_VECTOR, False: FUNCTION_OF_ELEMENT}  # for vectors, for elements
_CONDITION = {True: CONDITION_OF_VECTOR, False: CONDITION_OF_ELEMENT}
_NEAR = 4  # elements: the stride up to which LLVM makes a vector by shuffles; assumed (2026-11-24), not measured


@dataclass(frozen=True)
class _Place:
    """A store in an innermost loop, and the unrolled and vectorised loops around it."""

    store: tirx.BufferStore
    loops: tuple[tirx.For, ...]


class NestCycles:
    """Cycles of a nest.

    Parameters
    ----------
    lanes : int
        float32 values in a vector register.
    cores : int
        Threads that share a ``parallel`` loop.
    """

    def __init__(self, lanes: int, cores: int = 1):
        self.lanes, self.cores = lanes, cores
        self.extents: dict = {}

    def of(self, body: tirx.Stmt) -> float:
        """Return the cycles until the busiest thread finishes."""
        places = _places(body)
        if places is not None:
            return self._innermost(places, None)
        if isinstance(body, tirx.For):
            return self._loop(body)
        if isinstance(body, tirx.SeqStmt):
            return sum(map(self.of, body.seq))
        if isinstance(body, s_tir.SBlockRealize):
            return self.of(body.block.body)
        if isinstance(body, tirx.IfThenElse):
            return _CONDITION[False] + self.of(body.then_case) + (self.of(body.else_case) if body.else_case else 0)
        inner = getattr(body, "body", None)
        return self.of(inner) if inner is not None else 0.0

    def _loop(self, loop: tirx.For) -> float:
        self.extents[loop.loop_var] = most_of(loop.extent)
        places = _places(loop.body)
        if places is None:
            return self._turns(loop) * (self.of(loop.body) + ITERATION)
        return self._innermost(places, loop)

    def _turns(self, loop: tirx.For) -> int:
        """Return the number of iterations of a loop on one thread."""
        return -(-self.extents[loop.loop_var] // (self.cores if loop.kind == PARALLEL else 1))

    # -- innermost loops ---------------------------------------------------------------------------------------------

    def _innermost(self, places: Sequence[_Place], loop: tirx.For | None) -> float:
        for place in places:
            self.extents.update({each.loop_var: most_of(each.extent) for each in place.loops})
        count = self._turns(loop) if loop is not None else 1
        alone = loop is not None and loop.kind != PARALLEL
        if alone and all(self._runs_in_vectors(place, loop.loop_var) for place in places):
            return sum(self._cycles(_Place(p.store, (*p.loops, loop)), None, loop.loop_var)[0] for p in places)
        found = [self._cycles(place, loop.loop_var if loop is not None else None) for place in places]
        return count * (max(sum(each for each, _ in found), max(wait for _, wait in found)) + ITERATION)

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

    def _cycles(self, place: _Place, running, vector=None) -> tuple[float, float]:
        """Return the cycles of one iteration of the loop over `running`, and the latency of the one before it."""
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
        spread = times * sum(self._spread(each, lanes) for each in accesses) if in_vectors else 0.0
        loaded = sum(self._reads(load, steps, running) for load in read if not (sums and load in own))
        written = 0 if sums else times
        return max(times * work + spread, loaded / LOADS_PER_CYCLE, float(written)), FMA_LATENCY if sums else 0.0

    def _spread(self, access: tuple, lanes: Sequence) -> float:
        """Return the cycles to gather or scatter a vector whose elements are not contiguous."""
        apart = max((abs(self.step(*access, v)) for v in lanes), default=0)
        return 0.0 if apart <= 1 else SHUFFLE * apart if apart <= _NEAR else float(self.lanes)

    def _reads(self, load, steps: dict, running) -> float:
        """Return how often a load runs in an iteration: once for all unrolled loops that it does not depend on."""
        used = variables([*load.indices])
        if running is not None and running not in used and not any(v in used for v in steps):
            return 0.0
        return math.prod(count for v, count in steps.items() if v in used) * (1 + FAR_LOAD * (running in used))

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


def _value(expr, in_vectors: bool, varying: Sequence) -> tuple[float, list]:
    """Return the cycles of an element, or of a vector of them, and its loads; of alternatives the longer one.

    A costly operation that depends on none of the `varying` variables runs once before the loop, and is free here.
    """
    if isinstance(expr, ir.TensorLoad):
        divisions = 0 if in_vectors else len(collect([*expr.indices], _DIVIDED))
        return float(divisions), [expr]
    if isinstance(expr, tirx.Select) or is_if_then_else(expr):
        ways = (expr.true_value, expr.false_value) if isinstance(expr, tirx.Select) else expr.args[1:]
        cycles, read = max((_value(way, in_vectors, varying) for way in ways), key=lambda way: (way[0], len(way[1])))
        return cycles + _CONDITION[in_vectors], read
    parts, own = _operation(expr, in_vectors)
    if own > 1 and not any(v in varying for v in variables(expr)):
        own = 0.0
    found = [_value(part, in_vectors, varying) for part in parts]
    return own + sum(cycles for cycles, _ in found), [load for _, read in found for load in read]


def _operation(expr, in_vectors: bool) -> tuple[list, float]:
    """Return the operands of an operation, and its own cycles."""
    if isinstance(expr, ir.Call):
        name = function_name(expr)
        own = 1 / FMA_PER_CYCLE if name in _CHEAP_CALLS else DIVISION if name in _ROOTS else _FUNCTION[in_vectors]
        return list(expr.args), own
    if isinstance(expr, tirx.Cast):
        return [expr.value], 1 / FMA_PER_CYCLE
    if isinstance(expr, _ARITHMETIC):
        fused = isinstance(expr, tirx.Add | tirx.Sub) and any(isinstance(each, tirx.Mul) for each in (expr.a, expr.b))
        return [expr.a, expr.b], DIVISION if isinstance(expr, tirx.Div) else 0 if fused else 1 / FMA_PER_CYCLE
    return [], 0.0

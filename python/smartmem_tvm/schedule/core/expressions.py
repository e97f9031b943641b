# SPDX-License-Identifier: Apache-2.0
"""Properties of expressions that rules need: the iterators in them, strides in memory, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import gcd, prod

import numpy as np
from tvm import ir, sym, tirx

from ..._tvm import mapped
from ...ir.blends import branches
from ...ir.index_map import NotAnIndex, evaluate, function_name, is_if_then_else, variables
from ...ir.kernel import substitute
from ...ir.walk import collect, contains, loads, stores
from .nest import fresh, index

# Operations. Chosen: a polynomial in place of a transcendental function has more.
_CHEAP_ARITHMETIC = 16
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_MOST_INTERVALS = 64  # loops in place of one. Chosen: DenseNet-121 joins 24 tensors; each loop is code of its own
_CHEAP_CALLS = frozenset({"if_then_else", "fabs", "sqrt", "rsqrt", "floor", "ceil", "isnan"})  # of any dialect


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to `most`; 1 if `most` is less than 1."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=1)


def uses(expr, candidates: Sequence) -> list:
    """Return those of `candidates` (iterators) that occur in `expr`."""
    present = variables(expr)
    return [v for v in candidates if any(v.same_as(p) for p in present)]


def replace_loads(node, replace):
    """Return `node` with each load replaced by ``replace(load)``, where that is not None."""

    def visit(load):
        new = replace(load)
        return load if new is None else new

    return mapped(node, (ir.TensorLoad, visit))


def has_select(node) -> bool:
    """Whether the value depends on a condition; TVM computes it lane by lane instead of vectorising it."""
    return contains(node, (ir.Call, tirx.Select), lambda each: isinstance(each, tirx.Select) or is_if_then_else(each))


def choices(node) -> list[tuple]:
    """Return (condition, value if it holds, value if not) of each choice in an expression."""
    found = collect(node, (ir.Call, tirx.Select))
    selects = [(each.condition, each.true_value, each.false_value) for each in found if isinstance(each, tirx.Select)]
    return selects + [tuple(each.args) for each in found if is_if_then_else(each)]


def chooses_along(node, vars_: Sequence) -> bool:
    """Whether a condition in an expression depends on one of `vars_`."""
    return any(uses(condition, vars_) for condition, _, _ in choices(node))


def has_costly_call(node) -> bool:
    """Whether computing `node` again would cost more than loading it (exp, erf, division by a transcendental...)."""
    costly = contains(node, ir.Call, lambda call: function_name(call) not in _CHEAP_CALLS)
    return costly or _arithmetic(node) > _CHEAP_ARITHMETIC


def _arithmetic(node) -> int:
    """Return the number of operations on data; indices are integers and do not count."""
    return sum(str(operation.ty.dtype).startswith("float") for operation in collect(node, _ARITHMETIC))


def size(node) -> int:
    """Return the number of nodes of an expression tree; shared parts count each time."""
    return len(collect(node, ir.Expr))


def contiguous_run(access, extent: int, outer: Mapping, most: int) -> int:
    """Return how many elements lie next to each other in memory along a fused index, from each multiple of the result.

    Parameters
    ----------
    access : callable
        Fused index -> (buffer, indices), or None if the value there is no bare access.
    outer : mapping of tirx.Var to int
        Extents of the other variables in the access.
    most : int
        The longest run of interest, any number. The result is `most` or `most` halved some times, and divides it.
    """
    run = most
    while run > 1:
        if most % run:
            run //= 2
            continue
        group, within = fresh("group"), fresh("within")
        place = access(group * index(run) + within)
        walk = Walk({**outer, group: max(1, extent // run), within: run})
        if place is not None and run <= extent and walk.stride(*place, within) == 1:
            return run
        run //= 2
    return 1


def _flat(indices: Sequence, shape: Sequence[int]):
    flat = index(0)
    for at, extent in zip(indices, shape, strict=True):
        flat = flat * index(extent) + at
    return flat


def _sums(indices: Sequence, shape: Sequence[int]) -> tuple[dict[int, int], set[int]]:
    """Return variable -> its stride in elements, and the variables whose stride is unknown; both by their hashes.

    A stride is known where indices hold only sums and constant multiples of the variable. TVM's simplifier finds the
    same strides, in a hundred times the time.
    """
    found: dict[int, int] = {}
    divided: set[int] = set()
    for at, size in zip(indices, strides_of(shape), strict=True):
        _add_multiples(at, size, found, divided)
    return found, divided


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the stride, in elements, of each axis of a row-major tensor."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _add_multiples(expr, times: int, into: dict[int, int], divided: set[int]) -> None:
    """Add `times` the coefficient of each variable of a linear expression; note variables in other operations."""
    kind = type(expr)
    if kind is ir.Var:
        into[hash(expr)] = into.get(hash(expr), 0) + times
    elif kind is tirx.Add or kind is tirx.Sub:
        _add_multiples(expr.a, times, into, divided)
        _add_multiples(expr.b, times if kind is tirx.Add else -times, into, divided)
    elif kind is tirx.Mul and isinstance(expr.b, tirx.IntImm):
        _add_multiples(expr.a, times * int(expr.b), into, divided)
    elif kind is not tirx.IntImm:
        divided.update(map(hash, variables(expr)))


class Walk:
    """Memory strides of accesses under known iterator extents."""

    def __init__(self, extents: Mapping):
        self.extents = extents

    @cached_property
    def analyzer(self) -> sym.Analyzer:
        """TVM's analyzer, with the extents bound; most accesses do without it."""
        analyzer = sym.Analyzer()
        for var, extent in self.extents.items():
            analyzer.bind(var, ir.Range(0, int(extent)))
        return analyzer

    def offset(self, buffer, indices):
        """Return the row-major offset of an access, simplified."""
        return self.analyzer.simplify(_flat(indices, [int(d) for d in buffer.shape]))

    def stride(self, buffer, indices, var) -> int | None:
        """Return the number of elements between the accesses at `var` and `var` + 1; None if it varies."""
        return self.strides(buffer, indices)(var)

    def strides(self, buffer, indices) -> Callable[[tirx.Var], int | None]:
        """Return `stride` of one access as a function of the iterator."""
        sums, divided = _sums(indices, [int(d) for d in buffer.shape])
        whole: list = []  # the position in memory, computed when it is first needed

        def stride(var) -> int | None:
            if hash(var) not in divided:
                return sums.get(hash(var), 0) if int(self.extents[var]) > 1 else 0
            if not whole:
                whole.append(self.offset(buffer, indices))
            return self.step(whole[0], var)

        return stride

    def step(self, expr, var) -> int | None:
        """Return the difference of an index between `var` and `var` + 1; None if it varies."""
        # The last value of `var` has no successor: the simplifier gets a range in which both exist.
        step = tirx.Var("step", var.ty.dtype)
        self.analyzer.bind(step, ir.Range(0, max(1, int(self.extents[var]) - 1)))
        before, after = (substitute(expr, {var: step + d}) for d in (0, 1))
        delta = self.analyzer.simplify(after - before)
        return int(delta) if isinstance(delta, tirx.IntImm) else None

    def load_stride(self, expr, var) -> int | None:
        """Return the stride of a bare load along `var`; None if `expr` is no bare load or the stride varies."""
        if not isinstance(expr, ir.TensorLoad):
            return None
        return self.stride(expr.source, expr.indices, var)


def memory_order(vars_: Sequence, extents: Mapping, buffer, indices) -> tuple:
    """Return iterators by falling stride of an access; those without a constant stride come first."""
    step = Walk(extents).strides(buffer, indices)

    def distance(var) -> int:
        stride = step(var)
        return abs(stride) if stride is not None else 1 << 62

    return tuple(sorted(vars_, key=distance, reverse=True))


def split_index(flat, vars_: Sequence, extents: Mapping) -> dict:
    """Decode a row-major fused index into a value for each of `vars_`, the last one running fastest."""
    point, rest = {}, flat
    for position, var in reversed(list(enumerate(vars_))):
        extent = index(extents[var])
        point[var] = rest if position == 0 else tirx.floormod(rest, extent)
        rest = tirx.floordiv(rest, extent)
    return point


def fused_index(vars_, extents):
    """Return the fused index of some iterators, the last one running fastest."""
    flat = index(0)
    for var in vars_:
        flat = flat * index(extents[var]) + var
    return flat


def piece_length(node, var, extents: Mapping) -> int:
    """Return the length of pieces of the loop over `var` in which no ``//`` changes and no ``%`` wraps.

    The result is 1 if there is neither.
    """
    divisions = [each for each in collect(node, (tirx.FloorDiv, tirx.FloorMod)) if isinstance(each.b, tirx.IntImm)]
    divisors = [int(each.b) for each in divisions if uses(each.a, [var])]
    return gcd(extents[var], *divisors) if divisors else 1


def intervals(node, var, extents: Mapping) -> list[tuple[int, int]]:
    """Return (first, length) of the parts of the loop over `var` in which no condition on `var` alone changes.

    A concatenation has one for each of its tensors.
    """
    size, cuts = extents[var], {0}
    for condition, _, _ in choices(node):
        if variables(condition) == [var]:
            cuts |= _changes(condition, var, size)
    cuts = sorted(cuts) if len(cuts) <= _MOST_INTERVALS else [0]
    return [(first, after - first) for first, after in pairwise([*cuts, size])]


def _changes(condition, var, size: int) -> set[int]:
    """Return the values from which on a condition holds, or no longer holds; none if it is not of integers only."""
    try:
        holds = np.broadcast_to(evaluate(condition, {var: np.arange(size)}), size)
    except NotAnIndex:
        return set()
    return {int(each) + 1 for each in np.flatnonzero(holds[1:] != holds[:-1])}


def fusable_suffix(vars_: Sequence, extents: Mapping, accesses: Sequence) -> int:
    """Return how many trailing iterators can run as one loop, along which each access has a constant stride.

    Parameters
    ----------
    accesses : sequence of (buffer, indices)
    """
    for count in range(len(vars_), 1, -1):
        suffix, total = vars_[-count:], 1
        for var in suffix:
            total *= extents[var]
        flat = fresh("flat")
        point = split_index(flat, suffix, extents)
        walk = Walk({**extents, flat: total})
        moved = [(buffer, [substitute(i, point) for i in indices]) for buffer, indices in accesses]
        if all(walk.stride(buffer, indices, flat) is not None for buffer, indices in moved):
            return count
    return min(1, len(vars_))


def accesses_of(stage) -> list:
    """Return (buffer, indices) of each load and store of a stage."""
    read = [(load.source, tuple(load.indices)) for load in loads(stage.body)]
    return read + [(store.buffer, tuple(store.indices)) for store in stores(stage.body)]


def lie_side_by_side(stage, var) -> bool:
    """Whether an iterator can be vectorised: each access of a stage has stride 1 or 0 along it, and none branches."""
    walk = Walk(stage.extents)
    return not branches(stage.body) and all(walk.stride(*access, var) in (0, 1) for access in accesses_of(stage))

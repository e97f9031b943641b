# SPDX-License-Identifier: Apache-2.0
"""A reduction with its element-wise epilogue, the common form of matmul, convolution, pooling and sums.

    acc[s...] = init;  acc[s...] = combine(acc[s...], term(s..., r...));  out[f(s)] = finish(acc[s...], s...)

`reduction_of` recognises this form in a kernel; matmul and window rules start from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tvm import ir, tirx

from ...ir.kernel import Kernel, Stage, is_own, substitute
from ...ir.recent import Recent
from ...ir.walk import loads
from .expressions import replace_loads
from .nest import current_index_type, index

_reductions = Recent(64)
_COMBINERS: dict[type, Callable] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Max: tirx.max,
    tirx.Min: tirx.min,
}


@dataclass(frozen=True, eq=False)
class Reduction:
    """One reduction stage and its epilogue, without iterators of extent 1.

    Attributes
    ----------
    spatial, reduce : tuple of tirx.Var
        Iterators of the accumulator and of the sum.
    extents : mapping of tirx.Var to int
    init, term : expression
        Start value, and the value that each point adds (multiplies, compares).
    combine : callable
        ``(accumulated, term) -> expression``.
    accumulator : buffer
        The buffer of the sum in the unfused program; it need not exist after scheduling.
    output : buffer
    indices : tuple of expression
        Indices in `output` of the result of a spatial point.
    finish : expression
        The stored value; it loads `accumulator` at its spatial iterators.
    """

    spatial: tuple
    reduce: tuple
    extents: Mapping
    init: object
    term: object
    combine: Callable
    accumulator: object
    output: object
    indices: tuple
    finish: object

    def finish_with(self, value, point: Mapping):
        """Return the value stored at `point` (iterator -> expression) for the sum `value`."""
        at_point = substitute(self.finish, dict(point))
        return replace_loads(at_point, lambda ld: value if ld.source.same_as(self.accumulator) else None)

    def store(self, value, point: Mapping) -> tirx.Stmt:
        """Return the store of the finished result of `point`."""
        return tirx.BufferStore(
            self.output, self.finish_with(value, point), [substitute(i, dict(point)) for i in self.indices]
        )

    @property
    def work(self) -> int:
        """Number of points of the iteration space."""
        total = 1
        for var in (*self.spatial, *self.reduce):
            total *= self.extents[var]
        return total


@lru_cache(maxsize=4096)  # each rule calls it for all stages
def combiner_of(stage: Stage):
    """Return ``(combine, term)`` of a reduction stage ``acc = combine(acc, term)``, or None."""
    body = stage.body
    if not (isinstance(body, tirx.BufferStore) and isinstance(stage.init, tirx.BufferStore)):
        return None
    combine = _COMBINERS.get(type(body.value))
    if combine is None:
        return None
    for own, term in ((body.value.a, body.value.b), (body.value.b, body.value.a)):
        if isinstance(own, ir.TensorLoad) and own.source.same_as(body.buffer):
            free = not any(load.source.same_as(body.buffer) for load in loads(term))
            return (combine, term) if is_own(own, body) and free else None
    return None


def combiner_of_parts(stage: Stage) -> Callable | None:
    """Return the function that combines partial results of a reduction; None if a start value would count twice."""
    found = combiner_of(stage)
    if found is None:
        return None
    combine, start = found[0], stage.init.value
    if isinstance(stage.body.value, tirx.Max | tirx.Min):
        return combine
    zero = isinstance(start, tirx.FloatImm | tirx.IntImm) and float(start.value) == 0
    return combine if isinstance(stage.body.value, tirx.Add) and zero else None


def last_part(stage: Stage, term, lane, first: int):
    """Return the term of a lane of the last vector of a row, which overlaps the vector before it.

    Lanes below `first` add the start value, since the vector before has added their elements.
    """
    return tirx.Select(lane >= index(first), term, stage.init.value)


def reduction_of(kernel: Kernel) -> Reduction | None:
    """Return a kernel's reduction if it has one reduction stage and at most one element-wise epilogue, else None."""
    return _reductions.get(kernel, lambda: _reduction_of(kernel), current_index_type())


def _reduction_of(kernel: Kernel) -> Reduction | None:
    if not 1 <= len(kernel.stages) <= 2 or not kernel.stages[0].reduction or len(kernel.outputs) != 1:
        return None
    stage = kernel.stages[0]
    parts = combiner_of(stage)
    if parts is None or not _writes_each_point_once(stage):
        return None
    combine, term = parts
    if len(kernel.stages) == 1:
        target = (stage.body.buffer, tuple(stage.body.indices), stage.body.buffer[tuple(stage.body.indices)])
    else:
        target = _epilogue(stage, kernel.stages[1])
    if target is None or not target[0].same_as(kernel.outputs[0]):
        return None
    unit = {it.var: index(0) for it in stage.iters if stage.extents[it.var] == 1}
    output, indices, finish = target
    return Reduction(
        spatial=tuple(v for v in stage.spatial if v not in unit),
        reduce=tuple(v for v in stage.reduction if v not in unit),
        extents={v: e for v, e in stage.extents.items() if v not in unit},
        init=substitute(stage.init.value, unit),
        term=substitute(term, unit),
        combine=combine,
        accumulator=stage.body.buffer,
        output=output,
        indices=tuple(substitute(i, unit) for i in indices),
        finish=substitute(finish, unit),
    )


def _writes_each_point_once(stage: Stage) -> bool:
    """Whether the accumulator's indices are the bare spatial iterators, each once, and perhaps constants."""
    live = [v for v in stage.spatial if stage.extents[v] > 1]
    positions = [i for i in stage.body.indices if not isinstance(i, tirx.IntImm)]
    positions = [i for i in positions if not (isinstance(i, ir.Var) and stage.extents.get(i) == 1)]
    return (
        len(positions) == len(live)
        and all(isinstance(i, ir.Var) for i in positions)
        and all(any(i.same_as(v) for i in positions) for v in live)
    )


def _epilogue(stage: Stage, epilogue: Stage):
    """Return (buffer, indices, value) of an epilogue in the iterators of the reduction.

    The result is None if the epilogue does not read each sum once, at its own point.
    """
    if epilogue.reduction or not isinstance(epilogue.body, tirx.BufferStore):
        return None
    sums = [load for load in epilogue.loads if load.source.same_as(stage.body.buffer)]
    mapping: dict = {}
    for load in sums:
        for place, at in zip(stage.body.indices, load.indices, strict=True):
            if isinstance(at, ir.Var):
                old = mapping.setdefault(at, place)
                if not _same(old, place) or epilogue.extents.get(at) != _extent(stage, place):
                    return None
            elif not (isinstance(at, tirx.IntImm) and int(at) == 0 and _extent(stage, place) == 1):
                return None
    rest = [v for v in epilogue.spatial if v not in mapping]
    if not sums or any(epilogue.extents[v] > 1 for v in rest):
        return None
    mapping.update({v: index(0) for v in rest})
    read = {v for load in sums for v in load.indices if isinstance(v, ir.Var) and epilogue.extents[v] > 1}
    if len(read) != len([v for v in stage.spatial if stage.extents[v] > 1]):
        return None
    body = substitute(epilogue.body, mapping)
    return body.buffer, tuple(body.indices), body.value


def _extent(stage: Stage, place) -> int:
    return stage.extents[place] if isinstance(place, ir.Var) else 1


def _same(a, b) -> bool:
    return a.same_as(b) or (isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) == int(b))

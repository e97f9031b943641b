# SPDX-License-Identifier: Apache-2.0
"""StagePadding: pad, or compute, a window's operand once, instead of again for each element of the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from ...analysis.row_chain import factors
from ...ir.index_map import is_if_then_else, variables
from ...ir.kernel import SPATIAL, Kernel, Opaque, Stage, emit, parse, shape_of, substitute
from ...ir.map_functions import map_functions
from ...ir.walk import collect_outside, loads
from ..core.expressions import Walk, has_costly_call, memory_order
from ..core.nest import Scope, fresh, index
from ..core.reduction import combiner_of
from ..core.rule import is_open


@tvm.transform.module_pass(opt_level=0, name="smartmem.StagePadding")
class StagePadding:
    """Give windows whose operand is padded within them a padded copy of it, as convolutions with padding have.

    Before, where a ``Pad`` of its own was eliminated into a convolution without padding::

        acc[c, y, x] += if_then_else(1 <= y + ky < 57 ..., in[c, y + ky - 1, x + kx - 1], 0) * w[c, ky, kx]

    After::

        pad[c, p, q] = if_then_else(1 <= p < 57 ..., in[c, p - 1, q - 1], 0)
        acc[c, y, x] += pad[c, y + ky, x + kx] * w[c, ky, kx]

    The same is done for an operand that takes long to compute from one element of a tensor, such as an activation, if
    the windows overlap or adjacent lanes do not read adjacent elements::

        acc[c, y, x] = max(acc[c, y, x], sigmoid(in[c, y * 2 + ky, x * 2 + kx]))

    Rules for windows take the second form only; the first one is scheduled as any other reduction.

    Refuses (leaves as it is) operands that are read at ``a * y + b * ky`` where neither a nor b is 1 (stride and
    dilation), those whose padding depends on more than the position in the operand, and those that are no window.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every unscheduled PrimFunc of `mod`; others are left alone."""
        return map_functions(mod, _staged)


def _staged(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not is_open(func):
        return func
    try:
        kernel = parse(func)
    except Opaque:
        return func
    stages: list[Stage] = []
    for stage in kernel.stages:
        stages += _split(stage)
    if len(stages) == len(kernel.stages):
        return func
    return emit(Kernel(kernel.inputs, kernel.outputs, tuple(stages)), dict(func.attrs))


def _split(stage: Stage) -> list[Stage]:
    """Return the copy and the window that reads it, or the stage alone."""
    parts = combiner_of(stage) if stage.reduction else None
    if parts is None:
        return [stage]
    combine, term = parts
    outermost = [call for call in collect_outside(term, ir.Call, skip=ir.Call) if is_if_then_else(call)]
    known = outermost and isinstance(outermost[0].args[2], tirx.FloatImm | tirx.IntImm)
    operand = outermost[0] if len(outermost) == 1 and known else None if outermost else _computed(term)
    copy = _copy_of(stage, operand) if operand is not None else None
    if copy is None or (not outermost and not _saves(stage, copy)):
        return [stage]
    read = copy.buffer[copy.places]
    if operand.same_as(term):
        term = read
    else:
        term = tvm_ffi.structural_map(term, (type(operand), lambda each: read if each.same_as(operand) else each))
    own = stage.body.buffer[tuple(stage.body.indices)]
    body = tirx.BufferStore(stage.body.buffer, combine(own, term), list(stage.body.indices))
    return [copy.stage, replace(stage, body=body)]


@dataclass(frozen=True)
class _Copy:
    """A padded copy, the stage that writes it, and the indices at which a window reads it."""

    buffer: object
    stage: Stage
    places: tuple


def _computed(term) -> object | None:
    """Return the term, or a factor of it, that takes long to compute from one element of one tensor; else None."""
    return next((each for each in (term, *factors(term)) if _is_of_one_place(each)), None)


def _is_of_one_place(term) -> bool:
    read = loads(term)
    return bool(read) and has_costly_call(term) and all(tvm_ffi.structural_equal(each, read[0]) for each in read)


def _saves(stage: Stage, copy: _Copy) -> bool:
    """Whether a copy saves time: it has fewer elements than the window reads, or its lanes are contiguous.

    Windows that do not overlap, and whose lanes are contiguous already, gain nothing from a copy.
    """
    if prod(stage.extents.values()) > prod(copy.stage.extents.values()):
        return True
    moving = [var for var in stage.spatial if stage.extents[var] > 1]
    fastest = memory_order(moving, stage.extents, stage.body.buffer, stage.body.indices)[-1:]
    walk = Walk(stage.extents)
    return bool(fastest) and walk.load_stride(copy.buffer[copy.places], fastest[0]) != 1


def _copy_of(stage: Stage, padded) -> _Copy | None:
    if not loads(padded):
        return None
    scope, sides = Scope(), 0
    for it in stage.iters:
        scope.analyzer.bind(it.var, it.dom)
    value = scope.simplify(substitute(padded, {var: index(0) for var, size in stage.extents.items() if size == 1}))
    first = loads(value)[0]
    dims, extents, places, known = [], [], [], {}
    for at, whole in zip(first.indices, shape_of(first.source), strict=True):
        if not variables(at):
            continue
        dim, size, place = fresh("p"), whole, at
        if isinstance(at, ir.Var):
            size, known[at] = stage.extents[at], dim
        elif (side := _side(stage, at, dim, scope.analyzer)) is not None and side.var not in known:
            size, place, known[side.var] = side.size, side.place, side.value
            sides += 1
        else:  # the whole dimension, such as the channels of groups
            value = tvm_ffi.structural_map(value, (ir.TensorLoad, _with_index(at, dim)))
        dims.append(dim)
        extents.append(size)
        places.append(place)
        scope.analyzer.bind(dim, ir.Range(index(0), index(size)))
    value = scope.simplify(substitute(value, known))
    if not sides or any(var in stage.extents for var in variables(value)):
        return None
    buffer = tirx.decl_buffer(list(map(index, extents)), value.ty.dtype, "pad", layout=None)
    iters = tuple(tirx.IterVar(ir.Range(index(0), index(e)), v, SPATIAL) for v, e in zip(dims, extents, strict=True))
    return _Copy(buffer, Stage("pad", iters, tirx.BufferStore(buffer, value, dims)), tuple(places))


def _with_index(old, new) -> Callable:
    """Return a function that replaces one index of a load."""

    def changed(load):
        return load.source[tuple(new if tvm_ffi.structural_equal(at, old) else at for at in load.indices)]

    return changed


@dataclass(frozen=True)
class _SlidingAxis:
    """A sliding dimension of the copy: its size, the index `place` of the window, and an iterator `var` to replace.

    `value` is the iterator as a function of the index in the copy.
    """

    size: int
    place: object
    var: object
    value: object


def _side(stage: Stage, at, dim, analyzer: sym.Analyzer) -> _SlidingAxis | None:
    """Return the side of an index ``a * y + b * ky + c`` with a spatial iterator y and a reduction iterator ky."""
    spatial = [var for var in variables(at) if var in stage.spatial]
    reduced = [var for var in variables(at) if var in stage.reduction]
    if len(spatial) != 1 or len(reduced) != 1:
        return None
    steps = {var: analyzer.simplify(substitute(at, {var: var + index(1)}) - at) for var in (*spatial, *reduced)}
    if not all(isinstance(step, tirx.IntImm) and int(step) > 0 for step in steps.values()):
        return None
    # The iterator with step 1 becomes the index in the copy minus the other iterator's share.
    one = next((var for var, step in steps.items() if int(step) == 1), None)
    if one is None:
        return None
    (other,) = (var for var in steps if not var.same_as(one))
    place = analyzer.simplify(one + other * steps[other])
    size = stage.extents[one] + int(steps[other]) * (stage.extents[other] - 1)
    return _SlidingAxis(size, place, one, dim - other * steps[other])

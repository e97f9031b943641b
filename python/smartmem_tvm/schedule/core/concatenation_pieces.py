# SPDX-License-Identifier: Apache-2.0
"""Cut a kernel that reads a concatenation of tensors into one kernel for each of them.

    y[i, j] = exp(if_then_else(8 <= j, b[i, j - 8], a[i, j]))
    ->
    y[i, j] = exp(a[i, j]) for j in 0..8;  y[i, j] = exp(b[i, j - 8]) for j in 8..

No vector load spans two tensors, so values that depend on such a choice, transcendental functions included, would be
computed element by element. A piece has no choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from ...ir.kernel import Kernel, Stage, substitute
from ...ir.storage import along_result
from ...ir.walk import loads
from .expressions import choices
from .nest import Scope

MOST_PIECES = 12  # loop nests in place of one. Chosen: each is code of its own, compiled and kept
LEAST_PIECE = 256  # results of a piece. Chosen: loops of its own would cost a smaller one more than the choice does

_BELOW = (tirx.LE, tirx.LT)
_ABOVE = (tirx.GE, tirx.GT)


@dataclass(frozen=True)
class _CutRange:
    """An iterator of each stage, and the bounds at which its range is cut."""

    axes: dict
    bounds: tuple[int, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First value and length of each piece."""
        return [(begin, end - begin) for begin, end in itertools.pairwise(self.bounds)]


def pieces(kernel: Kernel) -> list[Kernel]:
    """Return kernels that each compute a range of the results of `kernel`, without choices between tensors.

    Each has the buffers of the whole. The kernel is cut along one dimension after the other, and a piece again only if
    a choice remains in it. The result is the kernel alone if it has no choice, or if the pieces would be too many or
    too small.
    """
    if len(kernel.outputs) != 1 or not all(isinstance(stage.body, tirx.BufferStore) for stage in kernel.stages):
        return [kernel]
    found = _pieces(kernel)
    return found if len(found) <= MOST_PIECES else [kernel]


def _pieces(kernel: Kernel) -> list[Kernel]:
    """Return the same pieces without a limit of their number."""
    last = kernel.last
    written = [at for at in last.body.indices if isinstance(at, ir.Var) and at in last.spatial]
    for cut in filter(None, (_cut(kernel, var) for var in written)):
        rest = math.prod(e for v, e in last.extents.items() if not cut.axes[last].same_as(v))
        if len(cut.ranges) <= MOST_PIECES and all(rest * length >= LEAST_PIECE for _, length in cut.ranges):
            return [one for each in cut.ranges for one in _pieces(_piece(kernel, cut.axes, each))]
    return [kernel]


def _cut(kernel: Kernel, var) -> _CutRange | None:
    """Return the cut along an iterator of the last stage; None if there is none, or not all stages run along it."""
    axes = along_result(kernel, var)
    if len(axes) < len(kernel.stages):
        return None
    extent = kernel.last.extents[var]
    found = {bound for stage in kernel.stages for bound in _bounds(stage.body.value, axes[stage])}
    inside = sorted(bound for bound in found if 0 < bound < extent)
    return _CutRange(axes, (0, *inside, extent)) if inside else None


def _bounds(value, var) -> Iterator[int]:
    """Yield the values of `var` at which a condition that chooses between tensors changes."""
    for condition, *ways in choices(value):
        if all(map(loads, ways)) and isinstance(condition, (*_BELOW, *_ABOVE)):
            yield from _changes(condition, var)


def _changes(condition, var) -> Iterator[int]:
    """Yield the first value of `var` at which a comparison with a number changes."""
    a, b = condition.a, condition.b
    if isinstance(a, tirx.IntImm) and b.same_as(var):  # a <= v, a < v, a >= v, a > v
        yield int(a) + isinstance(condition, (tirx.LT, tirx.GE))
    elif isinstance(b, tirx.IntImm) and a.same_as(var):  # v <= b, v < b, v >= b, v > b
        yield int(b) + isinstance(condition, (tirx.LE, tirx.GT))


def _piece(kernel: Kernel, axes: Mapping, piece: tuple[int, int]) -> Kernel:
    local = set(kernel.intermediates)
    return replace(kernel, stages=tuple(_part(stage, {axes[stage]: piece}, local) for stage in kernel.stages))


def _part(stage: Stage, ranges: Mapping, local: set) -> Stage:
    """Return a stage over ranges (first, length) of some iterators; `local` buffers are used from their start."""
    whole = {var: tirx.Var(var.name, var.ty) for var in ranges}  # its place in the whole result
    back = {new: old for old, new in whole.items()}
    moved = {new: old + tirx.const(ranges[old][0], old.ty.dtype) for new, old in back.items()}
    part, scope = stage.with_extents({var: length for var, (_, length) in ranges.items()}), Scope()
    for it in part.iters:
        scope.analyzer.bind(it.var, it.dom)

    def inner(indices) -> list:
        return [substitute(at, back) for at in indices]

    def load(old):
        return old.source[tuple(inner(old.indices))] if old.source in local else old

    def store(old):
        return tirx.BufferStore(old.buffer, old.value, inner(old.indices)) if old.buffer in local else old

    def rewrite(node):
        node = tvm_ffi.structural_map(substitute(node, whole), (ir.TensorLoad, load))
        node = tvm_ffi.structural_map(node, (tirx.BufferStore, store))
        return scope.simplify(substitute(node, moved))

    init = rewrite(stage.init) if stage.init is not None else None
    return replace(part, body=rewrite(stage.body), init=init)

# SPDX-License-Identifier: Apache-2.0
"""Thread blocks that end at once where all their results lie behind the length of a model with an open length.

    launch(256 thread blocks):                     launch(256 thread blocks):
      ...                                            if 8 * (block // 16) >= length: return
      out[8 * (block // 16) + ..., ...] = ...        ...; out[...] = ...

The grid stays as it is, so that one CUDA graph serves every length. A launch whose thread blocks all run at once gains
nothing, and would wait for the length first.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, sym, tirx

from ...ir.index_map import variables
from ...ir.walk import collect, contains
from ..core.positions import Positions, positions_on
from .gemm.ptx import is_dependency

_MEMORY = "global"


def with_ends(func: tirx.PrimFunc, at_once: int) -> tirx.PrimFunc:
    """Return a scheduled kernel whose thread blocks end where nothing reads their results; itself if none can.

    Parameters
    ----------
    at_once : int
        Thread blocks that the device runs at once: launches of no more stay.
    """
    positions = positions_on(func)
    # Before a kernel that is launched early waits, the length may not be there yet.
    if positions is None or contains(func.body, ir.Call, is_dependency):
        return func

    ended = {}
    for launch in collect(func.body, tirx.For):
        many = _is_axis(launch, "blockIdx") and isinstance(launch.extent, tirx.IntImm) and int(launch.extent) > at_once
        first = _first_place(launch, positions) if many else None
        if first is not None:
            ended[launch] = _ended(launch, first >= positions.end(str(first.ty.dtype)))
    if not ended:
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: ended.get(loop, loop))))


def _is_axis(loop: tirx.For, kind: str) -> bool:
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag).startswith(kind)


def _ended(loop: tirx.For, behind) -> tirx.For:
    """Return a launch whose threads return first where a condition on their thread block holds."""
    body = loop.body
    if isinstance(body, tirx.For) and body.thread_binding is not None:
        body = _ended(body, behind)
    else:
        leave = tirx.Evaluate(tirx.op.thread_return())
        body = tirx.SeqStmt([tirx.IfThenElse(behind, leave, None), body])
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def _first_place(launch: tirx.For, positions: Positions):
    """Return the first place along the positions that a thread block stores; None if it is not known."""
    stores = [each for each in collect(launch, tirx.BufferStore) if each.buffer.scope() == _MEMORY]
    addressed = [each for each in collect(launch, ir.TensorLoad) if each.source.same_as(positions.output)]
    if addressed or not stores or not all(each.buffer.same_as(positions.output) for each in stores):
        return None  # instructions may store through an address, and parts of sums are added by another launch
    loops = collect(launch, tirx.For)
    blocks = {each.loop_var for each in loops if _is_axis(each, "blockIdx")}
    least = _Least(blocks, {each.loop_var: each.min for each in loops if each.loop_var not in blocks})
    places = [least.of(each.indices[positions.axis]) for each in stores]
    if any(place is None for place in places):
        return None
    analyzer = sym.Analyzer()
    for each in loops:
        if each.loop_var in blocks:
            analyzer.bind(each.loop_var, ir.Range.from_min_extent(each.min, each.extent))
    first, *others = map(analyzer.simplify, places)
    for each in others:
        if not analyzer.can_prove(each >= first):
            first = each if analyzer.can_prove(first >= each) else tirx.min(first, each)
    return first if blocks & set(variables(first)) else None  # else no thread block can end


class _Least:
    """Lower bounds of indices over all threads and steps of a thread block.

    Parameters
    ----------
    blocks : set
        Variables of thread blocks, which stay.
    least : dict
        Variable of a thread or a loop -> its least value.
    """

    def __init__(self, blocks: set, least: dict):
        self.blocks, self.least = blocks, least

    def of(self, index):
        """Return a lower bound of an index; None if it is not known."""
        if set(variables(index)) <= self.blocks:
            return None if collect(index, ir.TensorLoad) else index
        if isinstance(index, tirx.Var):
            return self.of(self.least[index]) if index in self.least else None
        if isinstance(index, tirx.FloorMod):
            return tirx.const(0, str(index.ty.dtype)) if _positive(index.b) else None
        if isinstance(index, tirx.Cast):
            return _with(lambda a: tirx.Cast(index.ty.dtype, a), self.of(index.value))
        return self._of_pair(index)

    def _of_pair(self, index):
        if isinstance(index, tirx.Add | tirx.Min | tirx.Max):
            return _with(type(index), self.of(index.a), self.of(index.b))
        if isinstance(index, tirx.Sub) and set(variables(index.b)) <= self.blocks:
            return _with(tirx.Sub, self.of(index.a), self.of(index.b))
        grows = isinstance(index, tirx.Mul | tirx.FloorDiv) and _positive(index.b)
        return _with(type(index), self.of(index.a), index.b) if grows else None


def _positive(number) -> bool:
    return isinstance(number, tirx.IntImm) and int(number) > 0


def _with(make, *parts):
    return None if any(part is None for part in parts) else make(*parts)

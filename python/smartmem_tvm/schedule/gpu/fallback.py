# SPDX-License-Identifier: Apache-2.0
"""Fallback for kernels that no other GPU rule schedules: correct on any device, fast on none.

A kernel without thread bindings would run on the host, and read memory that is not the host's.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.target import Target

from ...ir.walk import contains
from ...target import Limits, is_gpu
from ..core.expressions import split_index
from ..core.nest import SERIAL, Scope, index, index_type
from ..core.rule import FinishedSchedule, Rule
from ..core.steps import nest_by_nest, points_of
from .launch import GpuParams, launch

_THREADS = "thread_extent"


class GpuLoops(Rule):
    """The rule for loops of any kind: a launch for each nest and step, a thread for each point of its outer loops."""

    catch_all = True

    def apply(self, func: tirx.PrimFunc, target: Target) -> FinishedSchedule | None:
        """Schedule `func`, or None if the target is no GPU or the kernel has its threads already."""
        if not is_gpu(target) or not isinstance(func.body, s_tir.SBlockRealize) or on_threads(func):
            return None
        params = GpuParams.of(Limits.of(target))
        return nest_by_nest(func, lambda nest: _launched(nest, params))


def on_threads(func: tirx.PrimFunc) -> bool:
    """Whether a kernel already has thread bindings."""
    bound = contains(func.body, tirx.For, lambda loop: loop.thread_binding is not None)
    return bound or contains(func.body, tirx.AttrStmt, lambda each: str(each.attr_key) == _THREADS)


def _launched(nest: tirx.Stmt, params: GpuParams) -> tirx.Stmt:
    extents, inner = points_of(nest)
    total = 1
    for extent in extents.values():
        total *= extent
    threads = min(params.elementwise_threads, params.limits.work_group, total)
    scope = Scope()

    def thread(number, lane) -> tirx.Stmt:
        point = number * index(threads) + lane
        place = split_index(point, list(extents), extents)
        body = tvm_ffi.structural_map(inner, ((ir.Var, lambda var: place.get(var, var)), (tirx.For, _in_order)))
        return body if total % threads == 0 else tirx.IfThenElse(point < index(total), body, None)

    types = {str(var.ty.dtype) for var in extents}
    with index_type(types.pop() if types else "int64"):
        return launch(scope, -(-total // threads), threads, thread)


def _in_order(loop: tirx.For) -> tirx.For:
    """Make a loop inside of a thread serial: a thread has no threads of its own."""
    return tirx.For(loop.loop_var, loop.min, loop.extent, SERIAL, loop.body)

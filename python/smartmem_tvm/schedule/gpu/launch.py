# SPDX-License-Identifier: Apache-2.0
"""Grids of thread blocks written out as loops: the base of every GPU rule of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tvm import ir, tirx
from tvm.target import Target

from ...ir.kernel import Kernel
from ...target import Limits, is_gpu
from ..core.fold_policies import costly_once, folded
from ..core.nest import Scope, fresh, index
from ..core.rule import FinishedSchedule, NestRule
from ..core.split_tuples import split_tuples
from .occupancy import require_limits

_DATA_PARALLEL_THREAD = 1  # kind of an axis, by definition of TVM (tirx.IterVar.iter_type): ThreadIndex
_LIMITS = Limits()


@dataclass(frozen=True)
class GpuParams:
    """Thresholds of the rules for rows and element-wise kernels on a GPU.

    Attributes
    ----------
    limits : Limits
        Those of the target.
    busy_threads, busy_blocks : int
        Threads and thread blocks that keep the device busy: with fewer, a row is spread over more of them.
    block_threads : int
        Threads of a thread block that works on several short rows.
    values_each : int
        Elements of a row per thread that a plan aims at where there are threads enough.
    row_registers : int
        Most elements of rows that a thread keeps in registers.
    elementwise_threads : int
        Threads of a thread block of an element-wise kernel.
    """

    limits: Limits = _LIMITS
    busy_threads: int = 128 * 1024
    busy_blocks: int = 120
    block_threads: int = 128
    values_each: int = 4
    row_registers: int = 128
    elementwise_threads: int = 256

    @classmethod
    def of(cls, limits: Limits) -> GpuParams:
        """Return the parameters of a target with these limits."""
        return cls(limits)


class GpuRule(NestRule):
    """A rule for targets that run kernels on a grid of threads.

    Attributes
    ----------
    sizes : type
        The class of its parameters; its ``of`` makes them from the limits of a target.
    """

    needs: ClassVar[str] = "a GPU"
    sizes: ClassVar[type] = GpuParams

    def runs_on(self, target: Target) -> bool:
        """Whether the target is a GPU."""
        return is_gpu(target)

    def params_of(self, target: Target):
        """Return the candidates and thresholds within the limits of a GPU."""
        return self.sizes.of(Limits.of(target))

    def apply(self, func: tirx.PrimFunc, target: Target) -> FinishedSchedule | None:
        """Schedule `func`, or return None; a schedule beyond the limits of the target raises ScheduleError."""
        schedule = super().apply(func, target)
        if schedule is not None:
            require_limits(schedule.mod["main"], Limits.of(target))
        return schedule

    def prepare(self, kernel: Kernel) -> Kernel | None:
        """Return the kernel with tuples split and element-wise stages folded into their readers."""
        return folded(split_tuples(kernel), costly_once)


def launch(scope: Scope, blocks: int, threads: int, body: Callable) -> tirx.Stmt:
    """Return a launch of ``body(number, thread)``, for each thread of each of `blocks` thread blocks."""
    return _bound(scope, "blockIdx.x", blocks, lambda b: _bound(scope, "threadIdx.x", threads, lambda t: body(b, t)))


def _bound(scope: Scope, tag: str, extent: int, body: Callable) -> tirx.Stmt:
    var, span = fresh(tag.replace(".", "_")), ir.Range(index(0), index(extent))
    scope.analyzer.bind(var, span)
    thread = tirx.IterVar(span, fresh(tag), _DATA_PARALLEL_THREAD, tag)
    return tirx.For(var, index(0), index(extent), tirx.ForKind.THREAD_BINDING, body(var), thread_binding=thread)


def registers(count: int, dtype: str, name: str):
    """Declare registers of one thread; every access must have a constant index once loops are unrolled."""
    return tirx.decl_buffer([index(count)], dtype, name, scope="local", layout=None)


def shared(count: int, dtype: str, name: str):
    """Declare shared memory of a thread block; TVM inserts barriers between its writes and reads."""
    return tirx.decl_buffer([index(count)], dtype, name, scope="shared", layout=None)


def when(condition, body: tirx.Stmt) -> tirx.Stmt:
    """Return `body` under a condition; None means always."""
    return body if condition is None else tirx.IfThenElse(condition, body, None)

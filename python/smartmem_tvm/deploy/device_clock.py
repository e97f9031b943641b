# SPDX-License-Identifier: Apache-2.0
"""Time a launch on a GPU by the device's own clock, without the host's share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import median

import numpy as np
import tvm
import tvm_ffi
from tvm import te
from tvm.target import Target

from ..target import device_of, parse_target
from .gpu_build import build_kernels

_BATCH = "smartmem.device_clock.batch"
_TIMES = 16  # launches of a short kernel in a row
_SHORT = 100e-6  # seconds; a kernel that takes longer is launched once, as other costs are small beside it
_SHORTEST = 1e-8  # seconds; the least result, so that no caller divides by zero
_REPEATS = 3
_STEPS = 20_000  # steps of the kernel that keeps the device busy, about half a millisecond


class DeviceClock:
    """The device's clock around launches of a kernel.

    A kernel is launched several times in a row, after another kernel that keeps the device busy until the host has
    submitted all of them. Otherwise the time of a kernel that is shorter than its submission would not show. The
    operands are in the device's caches as far as they fit.

    Parameters
    ----------
    target : tvm.target.Target
        A GPU of this machine.
    """

    def __init__(self, target: Target):
        device = device_of(target)
        self.batch: Callable[[], object] = lambda: None
        tvm_ffi.register_global_func(_BATCH, lambda: self.batch(), override=True)
        evaluator = tvm.get_global_func("runtime.RPCTimeEvaluator")
        where = (device.dlpack_device_type(), device.index)
        self.evaluate = evaluator(None, _BATCH, *where, 1, _REPEATS, 0, 1, 0, 1, 0, "")
        self.kernel = build_kernels(tvm.IRModule({"busy": _busy()}), target)  # kept: a function does not own its module
        busy, arguments = self.kernel["busy"], [tvm.runtime.tensor(np.ones(1, "float32"), device) for _ in range(2)]
        self.keep_busy = lambda: busy(*arguments)

    def seconds(self, launch: Callable[[], object]) -> float:
        """Return the seconds of a launch, from the end of the previous kernel to its own end, without host time."""
        before = self._measure(self.keep_busy)
        once = self._measure(lambda: self._back_to_back(launch, 1)) - before
        if once > _SHORT:
            return once
        return max(_SHORTEST, self._measure(lambda: self._back_to_back(launch, _TIMES)) - before) / _TIMES

    def _back_to_back(self, launch: Callable[[], object], times: int) -> None:
        self.keep_busy()
        for _ in range(times):
            launch()

    def _measure(self, batch: Callable[[], object]) -> float:
        self.batch = batch
        return float(median(np.frombuffer(bytes(self.evaluate()), "float64")))


@cache
def device_clock(kind: str) -> DeviceClock:
    """Return the clock of this machine's first GPU for a kind of target: ``cuda``, ``opencl``."""
    return DeviceClock(parse_target(kind))


def _busy() -> tvm.tirx.PrimFunc:
    """Return a kernel of one thread that adds up sines, which no compiler can optimise away."""
    x, step = te.placeholder((1,), "float32", "x"), te.reduce_axis((0, _STEPS), "step")
    total = te.compute((1,), lambda i: te.sum(te.sin(x[i] + step.astype("float32")), axis=step), "total")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, total]).with_attr("global_symbol", "busy"))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    only, _ = schedule.get_loops(block)
    group, thread = schedule.split(only, [None, 1])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return schedule.mod["main"].with_attr("global_symbol", "busy")

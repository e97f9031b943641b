# SPDX-License-Identifier: Apache-2.0
"""What each launch of an inference takes on a GPU by itself, by the device's own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import tvm
import tvm_ffi
from tvm import te

from ..deploy.build import Compiled
from ..deploy.gpu_build import build_kernels

_BATCH = "smartmem.launch_times.batch"
_TIMES = 16  # launches of a short kernel in a row
_SHORT = 100e-6  # seconds: a kernel that takes longer is launched once, for nothing beside it counts
_REPEATS = 3
_STEPS = 20_000  # of the kernel that keeps the device busy: about half a millisecond


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes
    ----------
    kernel : str
        The name of the kernel.
    seconds : float
        From the end of what was before it to its own, once the device is busy: no time of the host is in it.
    """

    kernel: str
    seconds: float


def launch_times(compiled: Compiled, inputs: Sequence[np.ndarray]) -> list[Launch]:
    """Time every launch of one inference on a GPU.

    A kernel is launched several times in a row on the arguments that the inference brings, behind one that keeps the
    device busy until the host has handed them all over: where single kernels are shorter than handing them over takes,
    nothing else shows what they take. Its operands are where the caches of the device keep them.

    Parameters
    ----------
    compiled : Compiled
        For a GPU, without CUDA graphs, inside of which no kernel can be seen.
    inputs : sequence of numpy.ndarray
        In the order of the model's inputs.

    Returns
    -------
    list of Launch
        In their order.
    """
    vm = compiled.machine()
    clock, found = _Clock(compiled), []

    def watch(function, name: str, before_run: bool, _result, *arguments) -> int:
        if before_run and not name.startswith("vm.builtin."):
            found.append(Launch(name, clock.seconds(lambda: function(*arguments))))
        return 0

    main, tensors = vm["main"], vm.tensors(inputs)
    vm.set_instrument(watch)
    main(*tensors)
    return found


class _Clock:
    """The device's clock around launches of a kernel."""

    def __init__(self, compiled: Compiled):
        device = compiled.vm.device
        self.batch: Callable[[], None] = lambda: None
        tvm_ffi.register_global_func(_BATCH, lambda: self.batch(), override=True)
        evaluator = tvm.get_global_func("runtime.RPCTimeEvaluator")
        where = (device.dlpack_device_type(), device.index)
        self.evaluate = evaluator(None, _BATCH, *where, 1, _REPEATS, 0, 1, 0, 1, 0, "")
        busy = build_kernels(tvm.IRModule({"busy": _busy()}), compiled.target)["busy"]
        arguments = [tvm.runtime.tensor(np.ones(1, "float32"), device) for _ in range(2)]
        self.keep_busy = lambda: busy(*arguments)

    def seconds(self, launch: Callable[[], object]) -> float:
        """Seconds of a launch."""
        alone = self._measure(launch)
        if alone > _SHORT:
            return alone
        before = self._measure(self.keep_busy)
        return max(0.0, self._measure(lambda: self._crowd(launch)) - before) / _TIMES

    def _crowd(self, launch: Callable[[], object]) -> None:
        self.keep_busy()
        for _ in range(_TIMES):
            launch()

    def _measure(self, batch: Callable[[], object]) -> float:
        self.batch = batch
        return float(median(np.frombuffer(bytes(self.evaluate()), "float64")))


def _busy() -> tvm.tirx.PrimFunc:
    """A kernel of one thread that adds up sines, which no compiler foresees."""
    x, step = te.placeholder((1,), "float32", "x"), te.reduce_axis((0, _STEPS), "step")
    total = te.compute((1,), lambda i: te.sum(te.sin(x[i] + step.astype("float32")), axis=step), "total")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, total]).with_attr("global_symbol", "busy"))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    only, _ = schedule.get_loops(block)
    group, thread = schedule.split(only, [None, 1])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return schedule.mod["main"].with_attr("global_symbol", "busy")

# SPDX-License-Identifier: Apache-2.0
"""The price of a kernel: the rule that takes it schedules it, and the cycles of its loop nest are counted.

Rules need no second model for this: recomputed values, scalar loops and copies of operands all appear in the loops that
a rule emits. The price adds the traffic of the kernel's inputs and outputs, and the cost of a launch, so that one fused
kernel wins over parts whose loops cost as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from ..ir.kernel import Kernel, Opaque, emit, shape_of
from ..target import is_cpu
from .choose import choose, cpu_rules
from .core.plans import Price
from .cpu.cost import LAST_LEVEL, LAUNCH
from .cpu.nest_work import NestWork
from .cpu.params import CpuParams
from .cpu.priced_work import Work


@dataclass(frozen=True)
class KernelPrice:
    """The predicted cost of a kernel.

    Attributes
    ----------
    rule : str
        The rule that would schedule it.
    cycles : float
        Until the core with the most work finishes.
    """

    rule: str
    cycles: float


class Prices:
    """Prices of kernels on one target; structurally equal kernels are scheduled once.

    Parameters
    ----------
    target : tvm.target.Target
        A CPU; on other targets no kernel has a price.
    """

    def __init__(self, target: Target):
        self.target = target
        self.rules = cpu_rules() if is_cpu(target) else []
        self.params = CpuParams.of(target) if is_cpu(target) else None
        self._known: dict = {}

    def of(self, kernel: Kernel) -> KernelPrice | None:
        """Return the price of a kernel, None if no rule takes it or it cannot be written as a loop program."""
        if not self.rules:
            return None
        try:
            func = emit(kernel)
        except Opaque:
            return None
        key = tvm_ffi.StructuralKey(emit(at_first_places(kernel)))
        if key not in self._known:
            self._known[key] = self._price(func, kernel)
        return self._known[key]

    def compare(self, fused: Iterable[Kernel], parts: Iterable[Kernel]) -> tuple[float, float] | None:
        """Return the total cycles of fused kernels, and those of their parts; None if a kernel has no price."""
        whole, apart = self._together(fused), self._together(parts)
        return None if whole is None or apart is None else (whole, apart)

    def _together(self, kernels: Iterable[Kernel]) -> float | None:
        prices = list(map(self.of, kernels))
        return None if None in prices else sum(price.cycles for price in prices)

    def _price(self, func: tirx.PrimFunc, kernel: Kernel) -> KernelPrice | None:
        plan = choose(func, self.target, self.rules).plan
        if plan is None:
            return None
        return KernelPrice(plan.rule, nest_price(plan.func, kernel, self.params).cycles)


def nest_price(func: tirx.PrimFunc, kernel: Kernel, params: CpuParams) -> Price:
    """Return the price of a scheduled kernel on a CPU, counted in its loops until the busiest thread finishes.

    Parameters
    ----------
    func : PrimFunc
        Scheduled.
    kernel : Kernel
        The same kernel in functional form. Its inputs and outputs are counted as passing through memory once.
    """
    moved = sum(map(_bytes, (*kernel.inputs, *kernel.outputs))) / params.cores
    loops = NestWork(params.lanes, params.cores).of(func.body)
    return Work(params, {"loops": loops, "inputs and outputs": [(moved, LAST_LEVEL)], "launch": [(1, LAUNCH)]}).price


def at_first_places(kernel: Kernel) -> Kernel:
    """Return the kernel with index 0 wherever it reads only one constant index along an axis of an input.

    The unrolled steps of a recurrence differ only in the step of the input that they read. They cost the same, and so
    they share one price.
    """
    read: dict = {}
    for load in (load for stage in kernel.stages for load in stage.loads):
        places = [int(at) if isinstance(at, tirx.IntImm) else None for at in load.indices]
        before = read.setdefault(load.source, places)
        read[load.source] = [place if place == other else None for place, other in zip(places, before, strict=True)]
    inputs = {buffer for buffer in kernel.inputs if any(read.get(buffer, ()))}
    if not inputs:
        return kernel

    def first(load):
        if load.source not in inputs:
            return load
        pairs = zip(load.indices, read[load.source], strict=True)
        return tirx.BufferLoad(load.source, [tirx.const(0, at.ty.dtype) if place else at for at, place in pairs])

    stages = (
        replace(stage, body=tvm_ffi.structural_map(stage.body, (ir.TensorLoad, first))) for stage in kernel.stages
    )
    return replace(kernel, stages=tuple(stages))


def _bytes(buffer) -> int:
    return math.prod(shape_of(buffer)) * -(-buffer.dtype.bits // 8)

# SPDX-License-Identifier: Apache-2.0
"""Latency of single kernels on a device, scheduled and built as `deploy.build` does with a whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, sym, tirx
from tvm.target import Target

from ..cpu_code import code_generation
from ..executor.devices import Device
from ..executor.readings import PROFILE, Readings, in_turns
from ..ir.kernel import Kernel, Opaque, Stage, parse
from ..ir.walk import loads
from ..pipeline import Options, lower_phases, run_phases
from ..transform.guard_divisions import GuardDivisions
from .weights import Weight

_RUNNING = 120.0  # seconds: kernels without a rule of their own take long, and drivers compile at the first launch


@dataclass(frozen=True)
class Kernels:
    """Compiled kernels that are launched by themselves.

    Attributes
    ----------
    code : tvm.runtime.Executable or tvm.runtime.Module
        With a function for each.
    data : mapping
        Function -> its arguments.
    """

    code: tvm.runtime.Executable | tvm.runtime.Module
    data: Mapping[str, Sequence[Weight]]


def kernel_seconds(device: Device, kernels: Kernels, sets: int = 1, how: Readings = PROFILE) -> list[float]:
    """Median seconds of one launch of each kernel on a device, taken in turns.

    What it takes to hand a launch over is in the time on this machine, where a network waits for it too.

    Parameters
    ----------
    sets : int
        Of arguments, which take turns.

    Raises
    ------
    RuntimeError
        If the device's clock shows no time.
    """
    code = device.load(kernels.code)
    with device.running(seconds=_RUNNING):
        arguments = {
            name: [[each.on(device.device) for each in weights] for _ in range(sets)]
            for name, weights in kernels.data.items()
        }
        clocks = [device.clock(code, name, given, handing_over=True) for name, given in arguments.items()]
        seconds = in_turns(clocks, how)
    if min(seconds) <= 0:
        raise RuntimeError("the device's clock shows no time")
    return seconds


def compiled(functions: Sequence[tirx.PrimFunc], target: Target) -> Kernels:
    """Kernels for any machine's `target`, scheduled as in a model, in the order of `functions`, with random data."""
    named = {f"kernel{number}": func for number, func in enumerate(functions)}
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in named.items()})
    schedule = tuple(phase for phase in lower_phases(target) if phase.name == "schedule")
    with target, code_generation(target) as given:
        code = tvm.compile(GuardDivisions()(run_phases(mod, schedule, Options())), given)
    return Kernels(code, {name: random_weights(func) for name, func in named.items()})


def random_weights(func: tirx.PrimFunc) -> list[Weight]:
    """The same as `random_arguments`, each with the memory that the kernel expects it in."""
    arrays = zip(random_arguments(func), func.params, strict=True)
    return [Weight(tvm.runtime.tensor(array), str(param.scope())) for array, param in arrays]


def random_arguments(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Arrays for all parameters of a PrimFunc.

    Numbers are in [0.5, 1.5), where no function that networks use overflows or slows down; integers that pick
    elements of other tensors stay within their bounds.
    """
    generator = np.random.default_rng(seed)
    try:
        bounds = index_bounds(parse(func))
    except Opaque:
        bounds = {}
    return [_random(generator, buffer, bounds.get(buffer, 2)) for buffer in func.params]


def _random(generator: np.random.Generator, buffer, below: int) -> np.ndarray:
    shape, dtype = [int(dim) for dim in buffer.shape], str(buffer.dtype)
    if "int" in dtype or dtype == "bool":
        return generator.integers(0, 2 if dtype == "bool" else below, shape).astype(dtype)
    return (generator.random(shape, dtype="float32") + 0.5).astype(dtype)


def index_bounds(kernel: Kernel) -> dict:
    """For each input whose elements appear in indices, the number below which they must stay.

    The largest ``n`` for which every index computed from elements in ``[0, n)`` is inside of what it indexes; 1 if
    none can be shown to be, for a gather takes element 0 of anything.
    """
    bounds: dict = {}
    for stage in kernel.stages:
        for load in stage.loads:
            for index, extent in zip(load.indices, load.source.shape, strict=True):
                for buffer in {inner.source for inner in loads(index)}:
                    bound = _largest(stage, index, int(extent))
                    bounds[buffer] = min(bound, bounds.get(buffer, bound))
    return bounds


def _largest(stage: Stage, index, extent: int) -> int:
    """By bisection, as an index grows with what it is computed from."""
    low, high = 1, extent
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _stays_inside(stage, index, extent, middle) else (low, middle - 1)
    return low


def _stays_inside(stage: Stage, index, extent: int, below: int) -> bool:
    analyzer = sym.Analyzer()
    for it in stage.iters:
        analyzer.bind(it.var, it.dom)
    picked: dict = {}

    def element(load):
        var = picked.setdefault(load.source, tirx.Var("element", load.ty))
        return var

    body = tvm_ffi.structural_map(index, (ir.TensorLoad, element))
    for var in picked.values():
        analyzer.bind(var, tvm.ir.Range(tirx.const(0, var.ty.dtype), tirx.const(below, var.ty.dtype)))
    bound = analyzer.const_int_bound(body)
    return bound.min_value >= 0 and bound.max_value < extent

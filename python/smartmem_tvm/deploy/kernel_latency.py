# SPDX-License-Identifier: Apache-2.0
"""Measure the latency of single kernels on a device, scheduled and built as in a whole model (`deploy.build`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, sym, tirx
from tvm.target import Target

from ..cpu_code import code_generation
from ..executor.job_devices import Device
from ..executor.readings import PROFILE, Readings, in_turns
from ..ir.kernel import Kernel, Opaque, Stage, parse
from ..ir.walk import loads
from ..pipeline import Options, lower_phases, run_phases
from ..tvm_mends.guard_divisions import GuardDivisions
from .weights import Weight

_RUNNING = 120.0  # seconds; kernels without a specific rule are slow, and drivers compile at the first launch


@dataclass(frozen=True)
class Kernels:
    """Compiled kernels to be launched one by one.

    Attributes
    ----------
    code : tvm.runtime.Executable or tvm.runtime.Module
        Code with one function for each kernel.
    data : mapping
        Function -> its arguments.
    """

    code: tvm.runtime.Executable | tvm.runtime.Module
    data: Mapping[str, Sequence[Weight]]


def kernel_seconds(device: Device, kernels: Kernels, sets: int = 1, how: Readings = PROFILE) -> list[float]:
    """Return the median seconds of one launch of each kernel on a device, timed in turns.

    On this machine, the time includes the submission of a launch, for which a network waits too.

    Parameters
    ----------
    sets : int
        Number of sets of arguments, used in turns.

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
    """Compile kernels for a `target`, scheduled as in a model, in the order of `functions`, with random data."""
    named = {f"kernel{number}": func for number, func in enumerate(functions)}
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in named.items()})
    schedule = tuple(phase for phase in lower_phases(target) if phase.name == "schedule")
    with target, code_generation(target) as given:
        code = tvm.compile(GuardDivisions()(run_phases(mod, schedule, Options())), given)
    return Kernels(code, {name: random_weights(func) for name, func in named.items()})


def random_weights(func: tirx.PrimFunc) -> list[Weight]:
    """Return `random_arguments`, each with the memory scope that the kernel expects."""
    arrays = zip(random_arguments(func), func.params, strict=True)
    return [Weight(tvm.runtime.tensor(array), str(param.scope())) for array, param in arrays]


def random_arguments(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Return random arrays for all parameters of a PrimFunc.

    Numbers are in [0.5, 1.5), where no function of networks overflows or slows down. Integers that index other tensors
    stay within bounds.
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
    """Return, for each input whose elements appear in indices, the exclusive upper bound of these elements.

    The bound is the largest ``n`` for which every index computed from elements in ``[0, n)`` stays inside the indexed
    tensor. It is 1 if none can be proved, as element 0 always exists.
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
    """Return the bound for one index by bisection; this assumes that the index grows with the element."""
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

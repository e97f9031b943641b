# SPDX-License-Identifier: Apache-2.0
"""Latency of single kernels on a device of this machine, scheduled and built as `deploy.build` does with a whole model.

Kernels that are to be compared run in turns, so that a slow moment of the machine hits all of them alike. Their data
stays where the caches keep it from launch to launch: what is measured is the kernel after its neighbour, as in a model,
not a kernel that finds everything in memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, sym, tirx
from tvm.target import Target

from ..ir.kernel import Kernel, Opaque, Stage, parse
from ..ir.walk import loads
from ..pipeline import Options, lower_phases, run_phases
from ..target import device_of
from .weights import Weight

# One reading of the clock spans this long: short enough for many turns, long beside the clock and the call.
_READING = 1e-3
# Turns of a comparison, unless they would take longer than `_LONGEST` seconds in all.
_ROUNDS, _FEWEST_ROUNDS, _LONGEST = 100, 5, 2.0


def launch_seconds(functions: Sequence[tirx.PrimFunc], target: Target) -> list[float]:
    """Median seconds of one launch of each PrimFunc, all of them measured in turns.

    Parameters
    ----------
    functions : sequence of PrimFunc
        Unscheduled kernels, as the graph passes leave them.
    target : tvm.target.Target
        One that this machine can run.

    Returns
    -------
    list of float
        In the order of `functions`. They run on the threads that TVM's pool has at the time.
    """
    return interleaved(launchers(functions, target))


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


def launchers(functions: Sequence[tirx.PrimFunc], target: Target) -> list[Callable[[int], None]]:
    """Build kernels; each result launches its kernel as often as it is told to, on data of its own."""
    device = device_of(target)
    kernels = compiled(functions, target)
    data = {name: [each.on(device) for each in weights] for name, weights in kernels.data.items()}
    return [launcher(kernels.code[name], [arguments], device) for name, arguments in data.items()]


def compiled(functions: Sequence[tirx.PrimFunc], target: Target) -> Kernels:
    """Kernels for any machine's `target`, scheduled as in a model, in the order of `functions`, with random data."""
    named = {f"kernel{number}": func for number, func in enumerate(functions)}
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in named.items()})
    schedule = tuple(phase for phase in lower_phases(target) if phase.name == "schedule")
    with target:
        code = tvm.compile(run_phases(mod, schedule, Options()), target)
    return Kernels(code, {name: random_weights(func) for name, func in named.items()})


def random_weights(func: tirx.PrimFunc) -> list[Weight]:
    """The same as `random_arguments`, each with the memory that the kernel expects it in."""
    arrays = zip(random_arguments(func), func.params, strict=True)
    return [Weight(tvm.runtime.tensor(array), str(param.scope())) for array, param in arrays]


def launcher(function, sets: Sequence[Sequence], device: tvm.runtime.Device) -> Callable[[int], None]:
    """A call that launches a kernel as often as it is told to, with one set of arguments after the other."""

    def launch(times: int) -> None:
        for number in range(times):
            function(*sets[number % len(sets)])
        device.sync()

    return launch


def interleaved(calls: Sequence[Callable[[int], None]], most: int = _ROUNDS) -> list[float]:
    """Median seconds of each call, taken in `most` turns; a short one is made many times per reading of the clock."""
    return in_turns([partial(_seconds, call) for call in calls], most)


def in_turns(clocks: Sequence[Callable[[int], float]], most: int = _ROUNDS) -> list[float]:
    """The same of calls by other clocks, each of which tells the seconds that so many calls took."""
    first = [min(clock(1) for _ in range(3)) for clock in clocks]
    times = [max(1, math.ceil(_READING / max(seconds, 1e-7))) for seconds in first]
    turn = sum(seconds * count for seconds, count in zip(first, times, strict=True))
    rounds = max(_FEWEST_ROUNDS, min(most, int(_LONGEST / max(turn, 1e-9))))
    readings: list[list[float]] = [[] for _ in clocks]
    for number in range(1 + rounds):
        for clock, count, found in zip(clocks, times, readings, strict=True):
            seconds = clock(count) / count
            if number > 0:  # the first turn warms up
                found.append(seconds)
    return [median(found) for found in readings]


def _seconds(call: Callable[[int], None], times: int) -> float:
    start = time.perf_counter()
    call(times)
    return time.perf_counter() - start


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

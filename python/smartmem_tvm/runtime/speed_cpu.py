# SPDX-License-Identifier: Apache-2.0
"""Measure the speed of this machine's CPU."""

from __future__ import annotations

import time

import numpy as np
import tvm
from tvm.target import Target
from tvm.target.codegen import target_has_features

from ..analysis.roofline import Speed
from ..schedule.cpu.params import CpuParams
from . import speed_kernels as kernels
from .launch_seconds import launch_seconds

_TYPES = ("float32", "float64", "int32")
SIZES = tuple(1 << power for power in (14, 16, 18, 20, 22, 23, 24, 25, 26, 27))
"""Bytes moved by a bandwidth measurement, from the size of a first-level cache to beyond all caches."""
_READINGS = 15  # the best counts: other load on the machine only makes a reading slower
# Seconds over which they are spread: the readings of a short program could all fall while another process runs.
_SPREAD = 0.1
_AT_LEAST = 1 << 21  # bytes that a thread moves in one reading
# Speed relative to float32 of vector or AMX instructions that multiply 16 or 8 bits and accumulate in wider types.
_NARROW = (
    ("float16", 2, ("avx512fp16", "fullfp16")),
    ("bfloat16", 2, ("avx512bf16", "bf16")),
    ("bfloat16", 16, ("amx-bf16",)),  # 16 x 16 x 32 products in 16 cycles, where a cycle has 32 of float32
    ("int8", 4, ("avx512vnni", "avxvnni", "dotprod")),
)


def measured(target: Target, threads: int, name: str) -> Speed:
    """Measure the CPU with small programs, some seconds in all.

    Arithmetic and calls are measured on one thread and multiplied by the number of threads: on a busy machine several
    threads may share a core during the measurement, and would seem no faster than one. Bandwidth does not scale with
    threads, so it is measured on all of them.
    """
    programs = {dtype: kernels.multiply_adds(1, target, dtype) for dtype in _TYPES}
    programs |= {each: kernels.function(each, target) for each in kernels.FUNCTIONS}
    moving = (kernels.loads, kernels.copies, kernels.stores)
    programs |= {each.__name__: each(threads, target) for each in moving}
    bench = _Bench(kernels.build(programs, target), target, threads)
    rates = {dtype: bench.multiply_adds(dtype) for dtype in _TYPES}
    for dtype, factor, features in _NARROW:
        has = any(target_has_features(each, target) for each in features)
        rates[dtype] = max(rates.get(dtype, 0.0), rates["float32"] * (factor if has else 1))
    loads, copies, stores = (bench.moved(each.__name__) for each in moving)
    moved = tuple((size, max(loads[size], copies[size])) for size in SIZES)
    calls = {each: bench.calls(each) for each in kernels.FUNCTIONS}
    launch = launch_seconds(target)
    return Speed(name, threads, rates, calls, moved, tuple((size, stores[size]) for size in SIZES), launch)


class _Bench:
    """Compiled programs and the device that they run on."""

    def __init__(self, code: tvm.runtime.Executable, target: Target, threads: int):
        self.code, self.target, self.threads, self.device = code, target, threads, tvm.cpu()
        self.lanes = kernels.STREAMS * CpuParams.of(target).lanes
        floats = max(SIZES) // 4 + threads * self.lanes
        self.arrays = [tvm.runtime.tensor(np.ones(floats, "float32")) for _ in range(2)]

    def best(self, program: str, *arguments) -> float:
        """Return the least seconds of a run."""
        evaluator = self.code.mod.time_evaluator(program, self.device, number=1, repeat=_READINGS)
        end = time.perf_counter() + _SPREAD
        best = min(evaluator(*arguments).results)
        while time.perf_counter() < end:
            best = min(best, *evaluator(*arguments).results)
        return max(best, 1e-9)

    def multiply_adds(self, dtype: str) -> float:
        """Return the multiply-adds per second of all threads, taken as those of one thread times their number."""
        sums = kernels.accumulators(self.target) * 32 // int(dtype[-2:])
        arrays = np.ones(2, dtype), np.zeros((1, sums), dtype)
        seconds = self.best(dtype, *map(tvm.runtime.tensor, arrays))
        return self.threads * sums * kernels.STEPS / seconds

    def calls(self, name: str) -> float:
        """Return the calls per second of all threads, taken as those of one thread times their number."""
        x, y = np.linspace(0.1, 2, kernels.VALUES + kernels.ROUNDS), np.zeros(kernels.VALUES)
        seconds = self.best(name, *(tvm.runtime.tensor(each.astype("float32")) for each in (x, y)))
        return self.threads * kernels.VALUES * kernels.ROUNDS / seconds

    def moved(self, program: str) -> dict[int, float]:
        """Return bytes touched -> bytes per second; half of a copy's bytes are read, half are written."""
        return {size: self._moved(program, size) for size in SIZES}

    def _moved(self, program: str, size: int) -> float:
        sides = 2 if program == kernels.copies.__name__ else 1
        chunks = max(1, size // (4 * sides * self.lanes * self.threads))
        touched = 4 * sides * self.lanes * self.threads * chunks
        rounds = max(1, _AT_LEAST * self.threads // touched)
        return touched * rounds / self.best(program, *self.arrays, chunks, rounds)

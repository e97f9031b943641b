# SPDX-License-Identifier: Apache-2.0
"""Measure the speed of a GPU of this machine with kernels that each load one part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import ir, s_tir, tirx
from tvm.target import Target

from ..analysis.roofline import Speed
from ..deploy.device_clock import device_clock
from ..deploy.gpu_build import build_kernels
from ..schedule.core.nest import UNROLL, Scope, allocate, block, index, loop, store
from ..schedule.gpu.launch import launch, registers
from ..target import Limits, is_cuda, target_row
from .launch_seconds import launch_seconds

GROUP = 128  # threads of a thread block
SUMS = 8  # independent sums of a thread: they hide the latency of a multiply-add
FUNCTIONS = ("exp", "erf", "tanh", "sigmoid", "log", "sqrt", "rsqrt", "pow", "sin", "cos")
SIZES = tuple(1 << power for power in (20, 22, 24, 25, 26, 27))
"""Bytes moved by a bandwidth measurement."""
_AT_LEAST = 1e-3  # seconds of a launch: its overhead is negligible beside them
_READINGS = 5  # the best counts
# Half precision on tensor cores relative to single precision without them: compute capability 7 and 7.5, and from 8 on
# (NVIDIA's whitepapers of V100, A100 and H100).
_MATRIX = ((8.0, 16), (7.0, 8))


def measured(target: Target, device: tvm.runtime.Device, name: str) -> Speed:
    """Measure the GPU with small kernels, some seconds in all."""
    groups = 8 * Limits.of(target).processors
    functions = {each: _arithmetic(groups, each) for each in FUNCTIONS}
    kernels = {"float32": _arithmetic(groups), "loads": _loads(groups), "copies": _copies(groups), **functions}
    mod = ir.IRModule({each: func.with_attr("global_symbol", each) for each, func in kernels.items()})
    bench = _Bench(build_kernels(mod, target), target, device, groups)
    peak = bench.arithmetic("float32")
    moved = tuple((size, max(bench.moved(each, size) for each in ("loads", "copies"))) for size in SIZES)
    rates = {"float32": peak, "float16": _half(target) * peak, "bfloat16": _half(target) * peak}
    calls = {each: bench.arithmetic(each) for each in FUNCTIONS}
    return Speed(name, None, rates, calls, moved, launch=launch_seconds(target))


def _half(target: Target) -> float:
    """Return the peak of half precision relative to single precision."""
    if is_cuda(target):
        arch = str(target.attrs.get("arch") or "sm_0").removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
        return next((times for least, times in _MATRIX if int(arch) >= 10 * least), 2)
    row = target_row(target)
    return 2.0 if row is not None and row.half else 1.0


class _Bench:
    """Compiled kernels and the device that they run on."""

    def __init__(self, code: tvm.runtime.Module, target: Target, device: tvm.runtime.Device, groups: int):
        self.code, self.device, self.threads = code, device, groups * GROUP
        self.clock = device_clock(target.kind.name)
        self.operands = tvm.runtime.tensor(np.array([0.5, 1.0], "float32"), device)
        floats = max(SIZES) // 4 + self.threads
        self.arrays = [tvm.runtime.tensor(np.ones(floats, "float32"), device) for _ in range(2)]

    def arithmetic(self, name: str) -> float:
        """Return the multiply-adds per second, or the calls of a function per second."""
        steps, seconds = self._long_enough(lambda steps: (self.operands, self.arrays[0], steps), name)
        return self.threads * SUMS * steps / seconds

    def moved(self, name: str, size: int) -> float:
        """Return the bytes per second of threads that stream through `size` bytes repeatedly."""
        sides = 2 if name == "copies" else 1
        turns = max(1, size // (4 * sides * self.threads))
        rounds, seconds = self._long_enough(lambda rounds: (*self.arrays, turns, rounds), name)
        return 4 * sides * self.threads * turns * rounds / seconds

    def _long_enough(self, arguments: Callable[[int], Sequence], name: str) -> tuple[int, float]:
        """Return the number of repetitions that takes at least `_AT_LEAST` seconds, and its best time in seconds."""
        times, function = 1, self.code[name]

        def once(times: int) -> float:
            given = arguments(times)
            return self.clock.seconds(lambda: function(*given))

        while (seconds := once(times)) < _AT_LEAST and times <= 1 << 20:
            times *= min(16, int(_AT_LEAST / seconds) + 1)
        return times, min(seconds, *(once(times) for _ in range(_READINGS - 1)))


def _arithmetic(groups: int, function: str = "") -> tirx.PrimFunc:
    """``(operands (2,), result (n,), steps)``: multiply-adds on the sums of each thread, and calls of a function."""
    steps = tirx.Var("steps", "int64")
    operands, result = _vector(2, "operands"), _result("result")
    call = _call(function)

    def task(group, thread):
        sums = registers(SUMS, "float32", "sums")
        start = loop(SUMS, lambda n: store(sums, (thread + n).astype("float32"), n), "n", UNROLL)

        def once(_):
            return loop(
                SUMS, lambda n: store(sums, call(sums[n] * operands[index(0)] + operands[index(1)]), n), "n", UNROLL
            )

        total = sums[index(0)]
        for number in range(1, SUMS):
            total = total + sums[index(number)]
        end = store(result, total, group * index(GROUP) + thread)
        return allocate([sums], block(start, loop(steps, once, "step"), end))

    return _function([operands, result, steps], groups, task)


def _call(function: str) -> Callable:
    if not function:
        return lambda x: x
    if function == "pow":
        return lambda x: tirx.power(x, tirx.const(0.7, "float32"))
    # The clamp keeps the input of the next step where no function overflows.
    return lambda x: tirx.min(getattr(tirx, function)(x), tirx.const(1.0, "float32"))


def _loads(groups: int) -> tirx.PrimFunc:
    """``(x (n,), y (n,), turns, rounds)``: the threads of a block add up the values of their block's range."""

    def task(x, y, first, thread, turns, rounds):
        total = registers(1, "float32", "total")

        def add(n):
            return store(total, total[index(0)] + x[first + n * index(GROUP) + thread], 0)

        zero = store(total, tirx.const(0, "float32"), 0)
        end = store(y, total[index(0)], first + thread)
        return allocate([total], block(zero, loop(rounds, lambda _: loop(turns, add, "turn"), "r"), end))

    return _moving(groups, task)


def _copies(groups: int) -> tirx.PrimFunc:
    """Like `_loads`, but each thread writes back what it read plus a number."""

    def task(x, y, first, thread, turns, rounds):
        def once(n):
            at = first + n * index(GROUP) + thread
            return store(y, x[at] + tirx.const(1, "float32"), at)

        return loop(rounds, lambda _: loop(turns, once, "turn"), "r")

    return _moving(groups, task)


def _moving(groups: int, task: Callable) -> tirx.PrimFunc:
    x, y = _result("x"), _result("y")
    turns, rounds = (tirx.Var(name, "int64") for name in ("turns", "rounds"))
    return _function([x, y, turns, rounds], groups, lambda g, t: task(x, y, g * turns * index(GROUP), t, turns, rounds))


def _vector(size: int, name: str):
    return tirx.decl_buffer([index(size)], "float32", name)


def _result(name: str):
    return tirx.decl_buffer([tirx.Var(f"{name}_size", "int64")], "float32", name)


def _function(params: list, groups: int, task: Callable) -> tirx.PrimFunc:
    root = s_tir.SBlock([], [], [], "root", launch(Scope(), groups, GROUP, task))
    attrs = {"tirx.noalias": True, "s_tir": True, "tirx.is_scheduled": True}
    return tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root)).with_attrs(attrs)

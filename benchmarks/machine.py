#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a CPU's models of time count with, and print it beside the figures of `schedule/cpu/machine.py`.

python benchmarks/machine.py                                          # a table
python benchmarks/machine.py --json benchmarks/machine_NAME.json      # kept, with machine and date

`benchmarks/machine.cc` has the loops, which clang++ compiles for this processor. Cycles are counted by a chain of
additions that runs before each measurement, so that they hold at any clock; figures are medians over the rounds, of
processor time. Threads are waked by a loop of TVM's, each of whose tasks takes one thread alone as long; wall time then
says what waking takes. It is left out where other processes use the cores.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import tvm

from smartmem_tvm.cpu_features import has_byte_tiles, has_tiles
from smartmem_tvm.runtime.speed_kernels import ROUNDS, VALUES, accumulators, build, function, multiply_adds
from smartmem_tvm.schedule.cpu import machine as figures
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.target import host_target
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import rounded, write

SOURCE = Path(__file__).with_suffix(".cc")
FLAGS = ["-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC"]
KIB, MIB = 1024, 1024 * 1024
SIZES = (16 * KIB, 32 * KIB, 48 * KIB, 64 * KIB, 256 * KIB, MIB, 3 * MIB // 2, 2 * MIB, 4 * MIB, 16 * MIB)
FAR = 64 * MIB  # bytes that are read after they have been removed from all caches
_FUNCTIONS = ("exp", "erf", "sigmoid")
_SECONDS = 1e-3  # of one measurement of a loop
_REGIONS, _STEPS = 300, 20_000  # parallel loops, and steps of a task: some 80 us, so that threads share them


@dataclass(frozen=True)
class Figure:
    """What was measured: a name, its unit, and the name in `schedule/cpu/machine.py` that it is compared with."""

    name: str
    value: float
    unit: str
    beside: str = ""


class Loops:
    """The compiled loops of `machine.cc`.

    Parameters
    ----------
    folder : Path
        Where the library goes.
    rounds : int
        Measurements of each loop.
    """

    def __init__(self, folder: Path, rounds: int):
        compiler = shutil.which("clang++")
        if compiler is None:
            raise SystemExit("machine.py needs clang++ (g++ keeps vectors of these loops in memory): install it.")
        library, tiles = folder / "machine.so", ["-mamx-tile", "-mamx-bf16"] if has_tiles(host_target()) else []
        tiles += ["-mamx-int8"] if has_byte_tiles(host_target()) else []
        subprocess.run([compiler, *FLAGS, *tiles, str(SOURCE), "-o", str(library)], check=True)
        self._library, self.rounds = ctypes.CDLL(str(library)), rounds
        self.lanes = self._library.Lanes()

    def seconds(self, name: str, count: int, *arguments) -> float:
        """Processor time of `count` rounds of a loop."""
        loop = getattr(self._library, name)
        loop.restype = ctypes.c_double
        return loop(ctypes.c_int64(count), *arguments)

    def flush(self, data: np.ndarray) -> bool:
        """Remove an array from all caches; False if the processor has no instruction for that."""
        return bool(self._library.Flush(_address(data), ctypes.c_int64(data.nbytes)))

    def cycle(self) -> float:
        """Seconds of a cycle, now."""
        return self.seconds("Cycles", 20_000) / (16 * 20_000)

    def cycles(self, measured: Callable[[], float]) -> float:
        """Median over the rounds of measured seconds, in cycles."""
        return statistics.median(measured() / self.cycle() for _ in range(self.rounds))

    def of(self, name: str, operations: int, *arguments) -> float:
        """Cycles of one of the `operations` of a round of a loop."""
        once = max(self.seconds(name, 100, *arguments) / 100, 1e-9)
        count = max(1, round(_SECONDS / once))
        return self.cycles(lambda: self.seconds(name, count, *arguments)) / (count * operations)


def _aligned(size: int) -> np.ndarray:
    """An array of `size` bytes that begins at a cache line, written once so that it has memory."""
    data = np.zeros(size // 4 + 16, "float32")
    data = data[-data.ctypes.data % 64 // 4 :][: size // 4]
    data[:] = 1
    return data


def _address(data: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(data.ctypes.data)


def instructions(loops: Loops) -> list[Figure]:
    """Multiplications, loads, divisions, functions."""
    add, data = loops.of("MultiplyAdds", 8), _aligned(8 * KIB)
    load = loops.of("Reads", data.nbytes // (4 * loops.lanes), _address(data), ctypes.c_int64(data.nbytes))
    return [
        Figure("multiply-adds of vectors per cycle", 1 / add, "per cycle", "FMA_PER_CYCLE"),
        Figure("float32 multiply-adds per cycle", loops.lanes / add, "per cycle", "FMA_LANES"),
        Figure("multiply-add on the one before", loops.of("MultiplyAddInTurn", 8), "cycles", "FMA_LATENCY"),
        Figure("loads of vectors per cycle", 1 / load, "per cycle", "LOADS_PER_CYCLE"),
        Figure("division of a vector", loops.of("Divisions", 4), "cycles", "DIVISION"),
        Figure("division of an element", loops.of("DivisionsOfElements", 4), "cycles", "DIVISION"),
        *(Figure(f"{n} of a vector", _function(loops, n), "cycles", "FUNCTION_OF_VECTOR") for n in _FUNCTIONS),
        Figure("exp of an element", loops.of("Exponentials", 8), "cycles", "FUNCTION_OF_ELEMENT"),
        Figure("erf of an element", loops.of("ErrorFunctions", 8), "cycles", "FUNCTION_OF_ELEMENT"),
        Figure("comparison and choice of a vector", loops.of("Conditions", 8), "cycles", "CONDITION_OF_VECTOR"),
        Figure("shuffle of a vector", loops.of("Shuffles", 8), "cycles", "SHUFFLE"),
        Figure("lanes of a vector added up", loops.of("LanesAddedUp", 4), "cycles", "ADD_LANES"),
    ]


def _function(loops: Loops, name: str) -> float:
    """Cycles of a function of a vector, as this package compiles it."""
    target = host_target()
    kernel = build({"main": function(name, target)}, target)["main"]
    x = tvm.runtime.tensor(np.linspace(-1, 1, VALUES + ROUNDS, dtype="float32"))
    y = tvm.runtime.tensor(np.zeros(VALUES, "float32"))

    def seconds() -> float:
        start = time.thread_time()
        for _ in range(20):
            kernel(x, y)
        return time.thread_time() - start

    return loops.cycles(seconds) / (20 * ROUNDS * VALUES / CpuParams.of(target).lanes)


def memory(loops: Loops) -> list[Figure]:
    """Bytes per cycle that are read and written again and again, by their number; and read from memory."""
    data, found = _aligned(FAR), []
    for size in SIZES:
        for name, loop in (("read", "Reads"), ("written", "Writes")):
            rate = 1 / loops.of(loop, size, _address(data), ctypes.c_int64(size))
            found.append(Figure(f"{name} of {size // KIB} KiB", rate, "bytes per cycle", _BESIDE.get((name, size), "")))
    if loops.flush(data):
        far = loops.cycles(lambda: _far(loops, data)) / data.nbytes
        found.append(Figure("read from memory", 1 / far, "bytes per cycle", "MEMORY_RATE"))
        found.append(Figure("weight from memory", far * 4, "cycles", "FETCH"))
    return found


_BESIDE = {
    ("written", 256 * KIB): "SPILL_RATE",
    ("read", 4 * MIB): "THIRD_LEVEL_RATE",
    ("read", 16 * MIB): "THIRD_LEVEL_RATE",
}


def _far(loops: Loops, data: np.ndarray) -> float:
    loops.flush(data)
    return loops.seconds("Reads", 1, _address(data), ctypes.c_int64(data.nbytes))


def tiles(loops: Loops) -> list[Figure]:
    """Products of tiles (AMX) whose right operand is in the first-level cache, and in the second one; their start."""
    if not has_tiles(host_target()):
        return []
    data, found = _aligned(MIB), []
    data[:] = 0
    for size in (16 * KIB, 512 * KIB):
        each = loops.of("TileProducts", 4 * size // 2048, _address(data), ctypes.c_int64(size))
        found.append(Figure(f"product of tiles, right one of {size // KIB} KiB", each, "cycles", "TILE_PRODUCT"))
        if has_byte_tiles(host_target()):
            each = loops.of("ByteTileProducts", 4 * size // 2048, _address(data), ctypes.c_int64(size))
            name = f"product of tiles of bytes, right one of {size // KIB} KiB"
            found.append(Figure(name, each, "cycles", "TILE_PRODUCT"))
    found.append(Figure("request and configuration of tiles", loops.of("TileStarts", 1), "cycles", "AMX_START"))
    return found


def threads(loops: Loops) -> list[Figure]:
    """What a parallel loop takes beside its longest task, for each of its threads; with two threads, or all cores."""
    target, count = host_target(), len(os.sched_getaffinity(0))
    if count < 2 or os.getloadavg()[0] > count / 2:
        print("Threads are not waked: this needs two cores, and no other process on half of them.", file=sys.stderr)
        return []
    kernels = {f"main{n}": multiply_adds(n, target, steps=_STEPS) for n in (1, count)}
    library = build(kernels, target)
    operands = tvm.runtime.tensor(np.array([0.5, 1.0], "float32"))
    times: dict[int, list[float]] = {1: [], count: []}
    results = {n: tvm.runtime.tensor(np.zeros((n, accumulators(target)), "float32")) for n in times}
    cycle = statistics.median(loops.cycle() for _ in range(loops.rounds))
    for _ in range(_REGIONS):
        for n, found in times.items():
            start = time.perf_counter()
            library[f"main{n}"](operands, results[n])
            found.append((time.perf_counter() - start) / cycle)
    least, usual = (
        {n: pick(each) for n, each in times.items()} for pick in (min, lambda each: statistics.quantiles(each, n=4)[0])
    )
    return [
        Figure(f"thread waked, of {count}: the least", (least[count] - least[1]) / count, "cycles", "WAKE"),
        Figure(f"thread waked, of {count}: lower quartile", (usual[count] - usual[1]) / count, "cycles", "WAKE"),
    ]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=21, help="measurements of each loop (21)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loops = Loops(Path(folder), args.rounds)
        cycle = statistics.median(loops.cycle() for _ in range(args.rounds))
        found = [Figure("clock", 1e-9 / cycle, "GHz")]
        for measure in (instructions, memory, tiles, threads):
            found += measure(loops)
    print(table(found))
    if args.json:
        kept = {"date": str(date.today()), "command": " ".join(["python", *sys.argv]), "machine": machine(1)}
        kept["figures"] = [rounded(vars(each)) for each in found]
        write(args.json, json.dumps(kept, indent=1) + "\n")


def table(found: Iterable[Figure]) -> str:
    """Return what was measured beside the figures of `schedule/cpu/machine.py`, as a table of Markdown."""
    rows = [f"| {each.name} | {each.value:.3g} | {each.unit} | {_beside(each.beside)} |" for each in found]
    return "\n".join(["| figure | measured | unit | `schedule/cpu/machine.py` |", "| --- | --- | --- | --- |", *rows])


def _beside(name: str) -> str:
    return f"`{name}` = {getattr(figures, name):,}" if name else ""


if __name__ == "__main__":
    main()

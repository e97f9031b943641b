#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long compiling takes, phase by phase, and how that grows with a network's depth.

python benchmarks/compile_time.py                                   # Swin-T with 12, 24 and 48 blocks, for the CPU
python benchmarks/compile_time.py --target cuda --into benchmarks/compile_time_cuda.json
python benchmarks/render.py compile_time                            # write the page and the chart

Each measurement is a process of its own on two cores; the networks take turns. Nothing compiled before is used again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

BEGAN = time.perf_counter()  # before TVM is imported
HERE = Path(__file__).resolve().parent
NETWORKS = {12: "models/swin_t.onnx", 24: "models/extra/swin_t_2x.onnx", 48: "models/extra/swin_t_4x.onnx"}
"""Blocks -> file."""
LOWERING, CODE = "TVM: kernels lowered", "TVM: machine code"


def measure(path: str, target_name: str) -> dict:
    """Compile one network in this process.

    Returns
    -------
    dict
        ``phases``, name -> seconds, in the order in which they ran; ``kernels``, of one inference; ``functions``, how
        many of them differ.
    """
    from smartmem_tvm import Options, from_onnx, graph_cost, optimize
    from smartmem_tvm.deploy.build import generate, lower
    from smartmem_tvm.target import parse_target

    phases, clock = {}, Clock()
    phases["imports"] = clock.split()
    mod = from_onnx(HERE.parent / path)
    phases["model read"] = clock.split()

    def observe(phase: str, _mod) -> None:
        phases[phase] = clock.split()

    target = parse_target(target_name)
    with target:
        graph = optimize(mod, observe=observe)
        lowered = lower(graph, target, Options(), observe).module
    clock.split()
    with passes() as seconds:
        generate(lowered, target)
    phases[LOWERING] = seconds()
    phases[CODE] = clock.split() - phases[LOWERING]
    return {"phases": phases, "kernels": graph_cost(graph).kernels, "functions": functions(graph)}


class Clock:
    """Seconds since the last time it was asked; first of all, since this file began."""

    def __init__(self):
        self.last = BEGAN

    def split(self) -> float:
        """Read it."""
        last, self.last = self.last, time.perf_counter()
        return self.last - last


def passes():
    """A context in which TVM's passes are timed; what it gives returns the seconds of all so far."""
    from contextlib import contextmanager

    import tvm
    from tvm.ir.instrument import pass_instrument

    @pass_instrument
    class Timer:
        depth, total = 0, 0.0

        def run_before_pass(self, _mod, _info):
            self.depth += 1
            if self.depth == 1:
                self.began = time.perf_counter()

        def run_after_pass(self, _mod, _info):
            self.depth -= 1
            if self.depth == 0:
                self.total += time.perf_counter() - self.began

    @contextmanager
    def timed():
        timer = Timer()
        current = tvm.transform.PassContext.current()
        with tvm.transform.PassContext(opt_level=current.opt_level, config=current.config, instruments=[timer]):
            yield lambda: timer.total

    return timed()


def functions(graph) -> int:
    """Different kernels of a graph: each is scheduled and compiled once, however often it is launched."""
    from tvm import tirx

    return sum(isinstance(func, tirx.PrimFunc) for func in graph.functions.values())


def in_process(path: str, target: str, cores: list[int]) -> dict:
    """`measure` in a process on `cores`."""
    wanted = {"TVM_BIND_THREADS": "0", "TVM_NUM_THREADS": str(len(cores)), "OMP_NUM_THREADS": str(len(cores))}
    environment = {**os.environ, **wanted, "SMARTMEM_CUDA_CACHE": "0"}
    command = [sys.executable, __file__, "--target", target, "--measure", path]
    child = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return json.loads(child.stdout.splitlines()[-1])


def summary(blocks: int, runs: list[dict]) -> dict:
    """Medians of the runs of one network."""
    return {
        "model": NETWORKS[blocks],
        "blocks": blocks,
        "kernels": runs[0]["kernels"],
        "functions": runs[0]["functions"],
        "seconds": {name: round(median(run["phases"][name] for run in runs), 4) for name in runs[0]["phases"]},
        "totals": [round(sum(run["phases"].values()), 3) for run in runs],
    }


def main() -> None:
    """Measure all networks, in turns, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--into", type=Path, default=HERE / "compile_time.json")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--measure", help="compile this network here and print the figures")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.target)))
        return
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tools.bench.results import write

    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    runs: dict[int, list[dict]] = {blocks: [] for blocks in NETWORKS}
    for turn in range(args.runs):
        for blocks, path in NETWORKS.items():
            runs[blocks].append(in_process(path, args.target, cores))
            print(f"{path}: {sum(runs[blocks][turn]['phases'].values()):.1f} s", file=sys.stderr)
    content = {
        "date": date.today().isoformat(),
        "machine": machine(len(cores)),
        "target": args.target,
        "runs": args.runs,
        "networks": [summary(blocks, found) for blocks, found in runs.items()],
    }
    write(args.into, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

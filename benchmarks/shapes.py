#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the matmuls and convolutions of the models on this machine's CPU, beside its peak and beside its peers.

python benchmarks/shapes.py -o benchmarks/shapes.json     # measure (`make bench-shapes`), then write the tables:
python benchmarks/render.py cpu
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
from shape_list import SHAPES
from shape_systems import OPENBLAS, ORT, OURS, PEAK, TVM, environment, prepare

from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.bench.child import Child
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.bench.turns import RunEffort, in_turns
from smartmem_tvm.tune.host import usable_cores

PATIENCE = 120.0  # seconds for one answer


def measure(shapes: Sequence[str], threads: int, effort: RunEffort) -> dict:
    """GFLOP/s of every system at every shape, on so many threads.

    Returns
    -------
    dict
        ``openblas_core``: the processor whose kernels OpenBLAS chose; ``shapes``: name of a shape -> system -> facts.
    """
    os.environ.update(environment(threads))  # for the processes to come
    # TVM's plain loops have no threads: once is enough.
    systems = [PEAK, OURS, OPENBLAS, ORT, *([TVM] if threads == 1 else [])]
    children, knows = {}, {}
    try:
        for system in systems:
            children[system] = Child(prepare, {"system": system, "threads": threads, "shapes": shapes}, PATIENCE)
        for system, child in children.items():
            knows[system] = _answered(child, child.answer())
        rows = {}
        for shape in shapes:
            able = {system: child for system, child in children.items() if shape in knows[system]["shapes"]}
            rows[shape] = _row(shape, able, effort)
            _tell(shape, threads, rows[shape])
        return {"openblas_core": knows[OPENBLAS]["core"], "shapes": rows}
    finally:
        for child in children.values():
            child.stop()


def _answered(child: Child, answer):
    if child.failure is not None:
        raise UserError(child.failure)
    return answer


def _row(shape: str, children: dict[str, Child], effort: RunEffort) -> dict:
    """One shape on all systems in turns; results are compared with ONNX Runtime's."""
    fed = {system: _answered(child, child.call("feed", {"shape": shape})) for system, child in children.items()}
    times = in_turns([lambda c=child: _answered(c, c.call("run")) for child in children.values()], effort)
    row = {}
    for (system, (result, flops, repeats)), seconds in zip(fed.items(), times):
        rates = sorted(int(flops) * int(repeats) / each / 1e9 for each in seconds)
        row[system] = {"gflops": round(median(rates), 2), "best": round(rates[-1], 2), "runs": len(rates)}
        if system != PEAK:
            row[system]["error"] = float(f"{_error(result, fed[ORT][0]):.1e}")
    return row


def _error(result: np.ndarray, expected: np.ndarray) -> float:
    """The largest deviation, relative to the largest value."""
    return float(np.abs(result - expected).max() / np.abs(expected).max())


def _tell(shape: str, threads: int, row: dict) -> None:
    figures = ", ".join(f"{system} {facts['gflops']:.1f}" for system, facts in row.items())
    print(f"{shape}, {threads} thread{'s' * (threads > 1)}: {figures} GFLOP/s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="result file")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4], help="thread counts (default: 1 4)")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each system at each shape")
    options = parser.parse_args(arguments)
    shapes = [name for name in SHAPES if options.only in name]
    effort = RunEffort(budget=options.budget, least=3, most=60)
    found = {str(threads): measure(shapes, threads, effort) for threads in options.threads}
    facts = {"date": date.today().isoformat(), "machine": machine(usable_cores()), "threads": found}
    if options.output:
        write(options.output, json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

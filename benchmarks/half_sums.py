#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time operators on halves on this CPU, with sums in float32 (`WidenSums`) and in halves as TVM has them.

python benchmarks/half_sums.py                  # benchmarks/half_sums.json, and a table on stdout

Both are compiled by this package and run in turn; the error is against the same numbers in float32, over the largest.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path
from statistics import median

import numpy as np
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

import smartmem_tvm
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import write

RESULTS = Path(__file__).resolve().parent / "half_sums.json"
op = relax.op


def attention(q, k, v):
    """Of heads of 64 numbers."""
    scores = op.multiply(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), relax.const(0.125, q.ty.dtype.dtype))
    return op.matmul(op.nn.softmax(scores), v)


CASES = {
    "matmul, 256 x 4096 x 1024": (op.matmul, [(256, 4096), (4096, 1024)]),
    "convolution, 128 x 28 x 28, 3 x 3": (
        lambda x, w: op.nn.conv2d(x, w, padding=1),
        [(1, 128, 28, 28), (128, 128, 3, 3)],
    ),
    "attention, 12 heads of 197 x 64": (attention, [(1, 12, 197, 64)] * 3),
    "softmax, 1024 x 4096": (op.nn.softmax, [(1024, 4096)]),
    "global average, 512 x 56 x 56": (lambda x: op.mean(x, [2, 3]), [(1, 512, 56, 56)]),
}


def compiled(build, shapes, dtype: str, *without: str) -> smartmem_tvm.Compiled:
    """The function of `build` on tensors of these shapes."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{number}", relax.TensorType(shape, dtype)) for number, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(build(*inputs))
        builder.emit_func_output(result)
    with tvm.transform.PassContext(opt_level=3, disabled_pass=list(without)):
        return smartmem_tvm.compile(builder.get())


def measured(build, shapes, runs: int) -> dict:
    """Milliseconds (medians) and errors of both ways."""
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype("float16") for shape in shapes]
    systems = {
        "float32": compiled(build, shapes, "float16"),
        "halves": compiled(build, shapes, "float16", "smartmem.WidenSums"),
    }
    (right,) = compiled(build, shapes, "float32").run(*(each.astype("float32") for each in arrays))
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(runs):
        for name, each in systems.items():
            start = time.perf_counter()
            each.run(*arrays)
            times[name].append(time.perf_counter() - start)
    largest = np.abs(right).max()
    errors = {name: np.abs(each.run(*arrays)[0].astype("f8") - right).max() / largest for name, each in systems.items()}
    return {name: {"ms": 1e3 * median(times[name]), "error": float(errors[name])} for name in systems}


def main() -> None:
    """Measure all cases, write the file, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=int, default=21)
    args = parser.parse_args()
    rows = {name: measured(*case, args.runs) for name, case in CASES.items()}
    facts = {"date": datetime.date.today().isoformat(), "machine": machine(len(os.sched_getaffinity(0)))}
    write(args.into, json.dumps({**facts, "runs": args.runs, "cases": rows}, indent=1) + "\n")
    table = Table("operator on halves", "sums in float32, ms", "in halves, ms", "ratio", "error", "in halves")
    for name, row in rows.items():
        a, b = row["float32"], row["halves"]
        ratio = a["ms"] / b["ms"]
        table.add_row(
            name, f"{a['ms']:.2f}", f"{b['ms']:.2f}", f"{ratio:.2f}", f"{a['error']:.1e}", f"{b['error']:.1e}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()

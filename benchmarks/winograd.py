#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure 3 x 3 convolutions as they are written and by transformed tiles, on one thread, beside ONNX Runtime.

python benchmarks/winograd.py -o benchmarks/winograd.json     # prints the table of docs/cpu.md as well
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
from shape_list import Convolution

from smartmem_tvm.tools.bench.results import write

WAYS = {"plain": False, "F(2, 3)": 2, "F(4, 3)": 4, "chosen": True}
SIZES = (
    (64, 56, 64),
    (128, 28, 128),
    (256, 14, 256),
    (512, 14, 512),
    (512, 7, 512),
    (128, 56, 32),
    (128, 14, 32),
    (128, 7, 32),
    (1280, 8, 1280),
)


def measured(shape: Convolution, budget: float) -> dict[str, dict]:
    """Processor time of each way, and of ONNX Runtime, in turns: the least; and errors against ONNX Runtime."""
    from smartmem_tvm.frontend import onnxruntime_session, read_model

    arrays, model = shape.arrays(), shape.model()
    session = onnxruntime_session(read_model(model), 1)
    feeds = {value.name: arrays[value.name] for value in model.graph.input}
    expected, calls, facts = session.run(None, feeds)[0], {}, {}
    for name, way in WAYS.items():
        result, calls[name] = _ours(model, list(feeds.values()), way)
        facts[name] = {"error": float(f"{np.abs(result - expected).max() / np.abs(expected).max():.1e}")}
    calls["ONNX Runtime"], facts["ONNX Runtime"] = lambda: session.run(None, feeds), {}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    end = time.time() + budget
    while time.time() < end or len(seconds["plain"]) < 5:
        for name, call in calls.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: {"ms": round(min(seconds[name]) * 1e3, 3), **facts[name]} for name in calls}


def _ours(model, inputs: list[np.ndarray], way: bool | int) -> tuple[np.ndarray, Callable]:
    import tvm

    from smartmem_tvm.deploy.build import compile
    from smartmem_tvm.frontend import from_onnx
    from smartmem_tvm.options import Options
    from smartmem_tvm.target import host_target
    from smartmem_tvm.tools.bench.turns import inference

    target = tvm.target.Target({**host_target().export(), "num-cores": 1})
    compiled = compile(from_onnx(model), target, options=Options(winograd=way))
    return np.asarray(compiled.run(*inputs)[0]), inference(compiled.vm, inputs)


def table(rows: dict[str, dict]) -> str:
    """The figures as Markdown."""
    head = ["convolution", *(f"{name}, ms" for name in next(iter(rows.values()))), "plain / chosen", "error"]
    lines = [head, ["---"] * len(head)]
    for name, row in rows.items():
        ratio = row["plain"]["ms"] / row["chosen"]["ms"]
        lines.append([name, *(f"{each['ms']:.3f}" for each in row.values()), f"{ratio:.2f}x", row["chosen"]["error"]])
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="result file")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each convolution (default: 2)")
    options = parser.parse_args(arguments)
    os.environ.update(TVM_NUM_THREADS="1", TVM_BIND_THREADS="0", OMP_NUM_THREADS="1")
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tune.host import set_threads

    set_threads(1)
    rows = {}
    for channels, pixels, filters in SIZES:
        shape = Convolution("", "3x3", channels, pixels, filters, 3, padding=1)
        rows[shape.name] = measured(shape, options.budget)
    print(table(rows))
    if options.output:
        facts = {"date": date.today().isoformat(), "machine": machine(1), "shapes": rows}
        write(options.output, json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

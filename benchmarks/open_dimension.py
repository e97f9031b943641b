#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model with an open dimension beside static compiles and ONNX Runtime, on one thread, in turns.

python benchmarks/open_dimension.py                                       # ResNet-18, batches of 1 to 16
python benchmarks/open_dimension.py bert.onnx ids:1..8,64 mask:1..8,64 --items 1 5 8
python benchmarks/open_dimension.py bert.onnx ids:1,1..128 mask:1,1..128 --items 1 7 16 37 64 100 128 --rounds 50
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from statistics import geometric_mean

os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime
from resnet18 import resnet18

import smartmem_tvm
from smartmem_tvm.cli.several_sizes import parse_lists
from smartmem_tvm.deploy.compiled import Compiled
from smartmem_tvm.frontend import read_open
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.frontend.open_dimension import Opened
from smartmem_tvm.graph_report import graph_cost


def processor_ms(calls: list, rounds: int) -> list[float]:
    """Return the least processor time of each call, in turns: other programs on the machine only add to it."""
    least = [float("inf")] * len(calls)
    for each in calls:
        each()
    for _ in range(rounds):
        for number, call in enumerate(calls):
            start = time.process_time()
            call()
            least[number] = min(least[number], time.process_time() - start)
    return [1e3 * each for each in least]


def reference(source: str | onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = source if isinstance(source, str) else source.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _static(found: Opened, items: int) -> tuple[dict, Compiled, float]:
    """Return inputs with so many items, a model compiled for them alone, and its processor seconds."""
    (bound,) = found.at(items)
    start = time.process_time()
    static = smartmem_tvm.compile(smartmem_tvm.from_onnx(bound))
    return random_inputs(bound.inputs, id_limits(bound.proto)), static, time.process_time() - start


def main() -> None:
    """Measure one network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="an ONNX file (default: ResNet-18)")
    parser.add_argument("shapes", nargs="*", help="shapes of its inputs, one dimension a range (default: x:1..16,...)")
    parser.add_argument("--items", type=int, nargs="+", default=[1, 3, 7], help="numbers of items")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    source = args.model or resnet18()
    start = time.process_time()
    found = read_open(source, parse_lists(args.shapes or ["x:1..16,3,224,224"]))
    seconds = time.process_time() - start
    # The open model is compiled last: the first model of a process reads its weights up to 1.2 times as slowly.
    statics = [_static(found, items) for items in args.items]
    start = time.process_time()
    model = smartmem_tvm.compile(found.module)
    seconds += time.process_time() - start
    session, rows, runs = reference(source), [], []
    for items, (arrays, static, alone) in zip(args.items, statics, strict=True):
        wanted, got = session.run(None, arrays), model.run(arrays)
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, wanted, strict=True))
        runs += [partial(model.run, arrays), partial(static.run, arrays), partial(session.run, None, arrays)]
        kernels = graph_cost(static.graph)
        rows.append({"items": items, "error": error, "static_compile_s": alone})
        rows[-1] |= {"static_kernels": kernels.kernels, "layout": kernels.layout_kernels}
    times = processor_ms(runs, args.rounds)
    for row, each in zip(rows, zip(times[::3], times[1::3], times[2::3])):
        row |= dict(zip(("open_ms", "static_ms", "onnxruntime_ms"), each, strict=True))
        print(json.dumps(row), flush=True)
    tiles = {
        each["items"]: (cost.kernels, cost.layout_kernels)
        for group in model.open
        for each in group["tiles"]
        for cost in [graph_cost(model.graph, each["function"])]
    }
    facts = {
        "model": Path(args.model).stem if args.model else "ResNet-18",
        "compile_s": seconds,
        "kernels and layout kernels of tiles": tiles,
        "to_static": geometric_mean(each["open_ms"] / each["static_ms"] for each in rows),
        "to_onnxruntime": geometric_mean(each["open_ms"] / each["onnxruntime_ms"] for each in rows),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()

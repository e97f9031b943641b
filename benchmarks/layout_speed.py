#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what another order of dimensions in buffers is worth on a device: on and off, in turns.

On a CPU the order is that of `ChannelsInnermost`, on GPUs that of `SelectLayout`.

python benchmarks/layout_speed.py                    # benchmarks/layout_speed.json (`make bench-layout-speed`)
python benchmarks/layout_speed.py --targets cpu      # the rows of one target again
python benchmarks/render.py layouts                  # and from it a table of docs/layouts.md
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import tvm

from smartmem_tvm import Options, from_onnx, graph_cost
from smartmem_tvm.deploy.build import generate, lower
from smartmem_tvm.deploy.inference_session import to_numpy
from smartmem_tvm.deploy.weights import Machine
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import check_inputs, read_model
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.pipeline import graph_phases, run_phases
from smartmem_tvm.planner.storage_order import KEPT, ORDER_PASSES
from smartmem_tvm.runtime.device import describe
from smartmem_tvm.target import device_of, is_cpu, parse_target
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.bench.turns import RunEffort, in_turns, inference
from smartmem_tvm.transform import ChannelsInnermost, SelectLayout
from smartmem_tvm.tune.host import cpu_name, set_threads

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "layout_speed.json"
NETWORKS = {"ConvNeXt-T": "convnext_t", "ResNeXt-50": "resnext50", "Swin-T": "swin_t"}
TARGETS = ("cpu", "cuda", "opencl")
EFFORT = RunEffort(budget=10.0, least=7, most=40)
TOLERANCE = 1e-4  # of the largest output


def measure(name: str, target: tvm.target.Target, launches: int) -> dict:
    """The row of one network on one target."""
    model = read_model(str(HERE.parent / "models" / f"{NETWORKS[name]}.onnx"), {})
    arrays = check_inputs(model.inputs, random_inputs(model.inputs, id_limits(model.proto), 0))
    with target:
        off = run_phases(from_onnx(model), graph_phases(target), Options(layout=False))
        on = (ChannelsInnermost() if is_cpu(target) else SelectLayout())(off)
    machines = [_machine(graph, target) for graph in (off, on)]
    one, other = (to_numpy(machine["main"](*machine.tensors(arrays)))[0] for machine in machines)
    if np.abs(one - other).max() > TOLERANCE * np.abs(one).max():
        raise UserError(f"{name} on {target.kind.name} has other results with its tensors in other orders.")
    times = in_turns([_timed(inference(machine, arrays), launches) for machine in machines], EFFORT)
    return {
        "reordered": sum(each["pass"] in ORDER_PASSES and each["action"] != KEPT for each in read_log(on)),
        "transitions": [graph_cost(graph).layout_transitions for graph in (off, on)],
        "ms": [round(1e3 * median(each), 3) for each in times],
    }


def _machine(graph: tvm.IRModule, target: tvm.target.Target) -> Machine:
    with target:
        lowered = lower(graph, target, Options())
    return Machine(generate(lowered.module, target), lowered.weights, device_of(target))


def _timed(run: Callable[[], None], launches: int) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(launches):
            run()
        return (time.perf_counter() - start) / launches

    return seconds


def _device(target: tvm.target.Target) -> str:
    return cpu_name() if target.kind.name == "llvm" else describe(device_of(target))["name"]


def main() -> None:
    """Measure what this machine has and write the file; rows of other targets stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--targets", nargs="+", default=("cuda", "opencl"), choices=TARGETS)
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=NETWORKS, metavar="NAME")
    parser.add_argument("--launches", type=int, default=30, help="inferences for each time that is taken (default: 30)")
    parser.add_argument("--threads", type=int, help="CPU threads to run on (default: one per core)")
    args = parser.parse_args()
    threads = set_threads(args.threads)
    rows = json.loads(args.into.read_text(encoding="utf-8"))["rows"] if args.into.exists() else []
    for kind in args.targets:
        target = parse_target(kind)
        where = _device(target) + (f", threads: {threads}" if kind == "cpu" else "")
        for name in args.only:
            print(f"{name}, {kind} ...", file=sys.stderr)
            known = {"name": name, "target": kind, "device": where, "date": datetime.date.today().isoformat()}
            rows = put(rows, known | measure(name, target, args.launches))
            write(args.into, json.dumps({"rows": rows}, indent=1) + "\n")


def put(rows: Sequence[dict], row: dict) -> list[dict]:
    """The rows with this one, instead of what was known, in the order of targets and networks."""
    others = [each for each in rows if (each["name"], each["target"]) != (row["name"], row["target"])]
    return sorted([*others, row], key=lambda each: (TARGETS.index(each["target"]), list(NETWORKS).index(each["name"])))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))

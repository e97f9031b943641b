#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latency and resident memory of networks within memory budgets, beside all in memory and one layer at a time.

python benchmarks/memory_budget.py                     # benchmarks/memory_budget.json (`make bench-memory-budget`)
python benchmarks/memory_budget.py --only resnet152    # the rows of one network again
python benchmarks/render.py memory_budget              # and from it the tables of docs/memory_budget.md

All ways to run a network run in turns in one process, twice in each turn, of which the second run counts: by then the
weights that are read ahead are its own, and not those of the way before it. Resident memory is that of a process for
each way, over what it has before it loads the model.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from smartmem_tvm import Options, compile, from_onnx
from smartmem_tvm.deploy.export import load, save
from smartmem_tvm.deploy.streamed import BudgetTooSmall, problem_of
from smartmem_tvm.frontend import check_inputs, input_spec, read_model
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.peak_memory import peak_mb, restart_peak
from smartmem_tvm.planner.preload import least_budget, plan_preload
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.bench.turns import RunEffort, in_turns, inference
from smartmem_tvm.tune.host import cpu_name, set_threads

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "memory_budget.json"
NETWORKS = {
    "VGG-19": "extra/vgg19",
    "ResNet-152": "extra/resnet152",
    "ViT-B/16": "vit_b16",
    "GPT-2": "extra/gpt2",
    "MobileNetV2": "extra/mobilenetv2",
    "SqueezeNet": "extra/squeezenet",
}
SHARES = (0.062, 0.07, 0.15, 0.5, 1.0)  # of all weights and tensors; the first two are FlexNN's
EFFORT = RunEffort(budget=20.0, least=7, most=60)


def measure(name: str) -> dict:
    """All rows of a network."""
    set_threads(1)
    model = read_model(str(HERE.parent / "models" / f"{NETWORKS[name]}.onnx"), {})
    mod = from_onnx(model)
    spec = input_spec(mod)
    arrays = check_inputs(spec, random_inputs(spec, id_limits(model.proto), 0))
    del model
    plain = compile(mod)
    whole = compile(mod, options=Options(memory_budget=10**12))
    problem = problem_of(whole.stream)
    total = whole.vm.memory_plan.bytes  # with every weight kept
    ways: dict[str, Callable[[], float]] = {"in memory": _timed(plain.vm, arrays)}
    (expected,) = plain.run(*arrays)[:1]
    demand = whole.machine()
    demand.use_plan(plan_preload(problem, least_budget(problem), 2e9, preload=False, pin=False))
    ways["on demand"] = _timed(demand, arrays)
    rows = [{"way": "in memory", "bytes": total}, {"way": "on demand", "bytes": demand.memory_plan.bytes}]
    least = _least(mod)
    with tempfile.TemporaryDirectory() as folder:
        for budget in sorted({least, *(int(share * total) for share in SHARES if share * total > least)}):
            compiled = compile(mod, options=Options(memory_budget=budget))
            loaded = _saved(compiled, arrays, Path(folder) / str(budget))
            row = _row(loaded, budget, total, arrays, expected)
            row["resident"] = _resident(Path(folder) / str(budget))
            row["seconds"]["slicing"] = round(compiled.seconds["passes"] - plain.seconds["passes"], 2)
            rows.append(row)
            ways[row["way"]] = _timed(loaded.vm, arrays)
            del compiled  # and with it its copy of the weights
            gc.collect()
        found = dict(zip(ways, in_turns(list(ways.values()), EFFORT), strict=True))
        for row in rows:
            times = found[row["way"]]
            row["ms"] = float(f"{1e3 * median(times):.5g}")
            pairs = zip(times, found["in memory"], strict=False)
            row["ratio"] = round(median(a / b for a, b in pairs), 4)
    storage = sum(weight.nbytes for weight in whole.weights)
    return {
        "name": name,
        "total": total,
        "least": least,
        "storage": storage,
        "rows": rows,
        "cpu": cpu_name(),
        "threads": 1,
        "date": datetime.date.today().isoformat(),
    }


def _saved(compiled, arrays: list, folder: Path):
    """The folder of a model, as others get it, loaded; the arrays lie beside it."""
    inputs = [{"name": str(n), "shape": list(a.shape), "dtype": str(a.dtype)} for n, a in enumerate(arrays)]
    save(compiled, folder, {"inputs": inputs, "outputs": ["y"]}, {})
    np.savez(folder.with_suffix(".npz"), *arrays)
    return load(folder)


def _resident(folder: Path) -> dict:
    command = [sys.executable, __file__, "--resident", str(folder)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def _row(loaded, budget: int, total: int, arrays: list, expected: np.ndarray) -> dict:
    """What there is to say of one budget, but its latency."""
    for _ in range(2):  # the first one finds no memory behind its addresses yet
        (found,) = loaded.run(*arrays)[:1]
    start = time.perf_counter()
    plan = loaded.set_memory_budget(budget)
    planning = time.perf_counter() - start
    return {
        "way": f"{100 * budget / total:.3g} %",
        "bytes": plan.bytes,
        "kernels": len(loaded.manifest["stream"]["steps"]),
        "pinned": sum(load.pinned for load in plan.loads),
        "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
        "seconds": {"planning": round(planning, 3)},
    }


def _least(mod) -> int:
    """The least budget, with slices as narrow as there are."""
    try:
        compile(mod, options=Options(memory_budget=1))
    except BudgetTooSmall as error:
        return error.least
    raise AssertionError("a model without weights")


def _timed(vm, arrays: list) -> Callable[[], float]:
    once = inference(vm, arrays)

    def seconds() -> float:
        once()
        start = time.perf_counter()
        once()
        return time.perf_counter() - start

    return seconds


def resident(folder: Path) -> dict:
    """Bytes that this process has at most while it loads and runs a model, over what it has before."""
    arrays = list(np.load(folder.with_suffix(".npz")).values())
    set_threads(1)
    if not restart_peak():
        raise SystemExit("this system does not measure a peak anew; Linux does.")
    before = peak_mb()
    loaded = load(folder)
    for _ in range(3):
        loaded.run(*arrays)
    return {"peak": round(1e6 * (peak_mb() - before)), "arena": loaded.vm.memory_plan.bytes}


def main() -> None:
    """Measure each network in a process of its own and write the file; rows of others stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), metavar="NAME", help="names, or files of models/")
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--resident", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone or args.resident:
        print(json.dumps(measure(args.alone) if args.alone else resident(args.resident)))
        return
    rows = {row["name"]: row for row in json.loads(args.into.read_text(encoding="utf-8"))} if args.into.exists() else {}
    for name in [n for n, file in NETWORKS.items() if {n, file, Path(file).name} & set(args.only)]:
        print(f"{name} ...", file=sys.stderr)
        command = [sys.executable, __file__, "--alone", name]
        rows[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        write(args.into, json.dumps([rows[each] for each in NETWORKS if each in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()

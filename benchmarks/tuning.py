#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the genetic search with MetaSchedule's evolutionary search, kernel by kernel, for the same number of trials.

python benchmarks/tuning.py -o benchmarks/tuning.json     # measure (`make bench-tuning`), then write the tables:
python benchmarks/render.py tuning

The strategies take turns batch by batch, in the same builder and runner. The three fastest candidates of each are then
measured in turns with the untuned kernel, by the judge of `smartmem tune`. A run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from smartmem_tvm import from_onnx
from smartmem_tvm.deploy.build import optimize
from smartmem_tvm.deploy.fill_profiles import device_name, measured_target
from smartmem_tvm.deploy.judge_in_worker import WorkerJudge
from smartmem_tvm.deploy.kernel_code import kernel_code
from smartmem_tvm.deploy.this_machine import ThisMachine, measuring_worker
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.job_devices import Executor
from smartmem_tvm.executor.workers import Workers
from smartmem_tvm.target import is_gpu
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tune.build_candidates import building_workers, local_builder
from smartmem_tvm.tune.host import run_threads, usable_cores
from smartmem_tvm.tune.kernel_search import SearchSession, Tools
from smartmem_tvm.tune.measure_candidates import CandidateRunner
from smartmem_tvm.tune.metaschedule import cost_model
from smartmem_tvm.tune.strategy import seconds_of
from smartmem_tvm.tune.tasks import Task, tasks_of

MODELS = Path(__file__).resolve().parent.parent / "models"
STRATEGIES = ("genetic", "evolutionary")
FINALISTS = 3


@dataclass(frozen=True)
class Kernel:
    """A kernel of a model, by the name it has there; `what` describes it in the tables."""

    kind: str
    what: str
    model: str
    name: str


CPU = (
    Kernel("matmul", "196x384x1536, GELU", "swin_t", "matmul_add_gelu2"),
    Kernel("matmul", "196x1536x384, residual", "swin_t", "matmul_add19"),
    Kernel("matmul", "3136x96x384, GELU", "convnext_t", "matmul_add_gelu"),
    Kernel("matmul", "197x768x2304, bias", "vit_b16", "matmul_add"),
    Kernel("matmul", "128x768x768, residual", "bert_base", "matmul_add1"),
    Kernel("convolution", "7x7 / 2, 3 to 64 channels", "resnext50", "conv2d24"),
    Kernel("convolution", "3x3, 32 groups of 8, 28x28", "resnext50", "conv2d_add_relu4"),
    Kernel("convolution", "7x7 depthwise, 384, 14x14", "convnext_t", "conv2d_add6"),
    Kernel("reduction", "layer norm, 3136x96, turned", "convnext_t", "layer_norm7"),
    Kernel("reduction", "layer norm, 197x768", "vit_b16", "layer_norm1"),
)
GPU = (CPU[0], CPU[3], CPU[7], CPU[9])


def tasks(kernels: Sequence[Kernel], target: Target) -> dict[Kernel, Task]:
    """The kernels as tasks.

    Raises
    ------
    UserError
        If a model has no kernel of a name.
    """
    found = {}
    for model in dict.fromkeys(kernel.model for kernel in kernels):
        with target:
            there = {name: task for task in tasks_of(optimize(from_onnx(MODELS / f"{model}.onnx")), target)
                     for name in task.names}  # fmt: skip
        for kernel in (each for each in kernels if each.model == model):
            if kernel.name not in there:
                raise UserError(f"Model {model} has no kernel {kernel.name}; choose one of {', '.join(sorted(there))}.")
            found[kernel] = there[kernel.name]
    return found


def compare(task: Task, target: Target, trials: int, batch: int, seed: int, builders: Workers, worker: Workers) -> dict:
    """Both strategies in turns.

    Returns
    -------
    dict
        ``untuned_us``; and by strategy ``us`` of its best kernel, measured in turns with the untuned one, ``best_us``
        as the runner saw it, ``trials``, ``failed``, ``wrong``, ``seconds``.
    """
    databases = {name: ms.database.MemoryDatabase() for name in STRATEGIES}
    executor = Executor(ThisMachine(target), worker)
    builder, runner = local_builder(builders, kernel_code), CandidateRunner(executor)
    tools = {name: Tools(builder, runner, databases[name], cost_model(name)) for name in STRATEGIES}
    sessions = {
        name: SearchSession(task.mod, target, name, tools[name], trials, batch, seed, task.names[0])
        for name in STRATEGIES
    }
    facts = {name: {"seconds": 0.0} for name in STRATEGIES}
    going = dict(sessions)
    while going:
        for name, session in list(going.items()):
            start = time.monotonic()
            if not session.step():
                going.pop(name)
            facts[name]["seconds"] += round(time.monotonic() - start, 1)
    for name, session in sessions.items():
        failed = sum(each.seconds is None for each in session.done)
        facts[name] |= {"trials": len(session.done), "failed": failed, "best_us": _us(session.best)}
    finalists = {name: _fastest(databases[name]) for name in STRATEGIES}
    found = [each for records in finalists.values() for each in records]
    verdicts = WorkerJudge(executor, builders).judge(task.mod, target, found)
    untuned = next(each.untuned for each in verdicts if not each.wrong)
    rest = iter(verdicts)
    for name, records in finalists.items():
        times = [each.seconds for _, each in zip(records, rest) if not each.wrong]
        # without a right kernel there is the untuned one
        facts[name] |= {"us": _us(min(times, default=untuned)), "wrong": len(records) - len(times)}
    return {"untuned_us": _us(untuned), **facts}


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 2)


def _fastest(database: ms.database.Database) -> list[ms.database.TuningRecord]:
    timed = [each for each in database.get_all_tuning_records() if seconds_of(each) is not None]
    return sorted(timed, key=seconds_of)[:FINALISTS]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the result file does not have yet, and write it after each comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="result file")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--trials", type=int, default=64, help="of each strategy (default: 64)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these kernels, by their names in the models")
    parser.add_argument("--cores", type=int, nargs="+", default=[], help="where candidates are measured, none built")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after this time")
    options = parser.parse_args(arguments)
    target, start = measured_target(options.target), time.monotonic()
    rows = json.loads(options.output.read_text(encoding="utf-8"))["rows"] if options.output.exists() else []
    there = {(row["model"], row["name"], row["seed"]) for row in rows}
    kernels = [each for each in (GPU if is_gpu(target) else CPU) if not options.only or each.name in options.only]
    found = tasks(kernels, target)
    others = sorted(os.sched_getaffinity(0) - set(options.cores)) if options.cores else []
    builders = building_workers(usable_cores(others), cores=others)
    head = {
        "target": options.target,
        "device": device_name(target),
        "threads": None if is_gpu(target) else run_threads(),
        "trials": options.trials,
        "machine": machine(usable_cores()),
    }
    for seed in options.seeds:
        for kernel in kernels:
            if (kernel.model, kernel.name, seed) in there or time.monotonic() - start > 60 * options.minutes:
                continue
            with closing(measuring_worker(cores=options.cores, gpu=is_gpu(target))) as worker:
                facts = compare(found[kernel], target, options.trials, options.batch, seed, builders, worker)
            row = {"model": kernel.model, "name": kernel.name, "seed": seed, "date": date.today().isoformat(), **facts}
            rows.append(row)
            write(options.output, json.dumps({**head, "rows": rows}, indent=1) + "\n")
            times = ", ".join(f"{name} {facts[name]['us']:.1f}" for name in STRATEGIES)
            print(
                f"{kernel.model} {kernel.name} seed {seed}: untuned {facts['untuned_us']:.1f}, {times} us", flush=True
            )


if __name__ == "__main__":
    main()

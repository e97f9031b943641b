#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure small networks on two threads of two cores that other processes use too, beside ONNX Runtime and OpenVINO.

python benchmarks/busy_machine.py -o benchmarks/busy_machine.json     # prints the table of docs/cpu.md as well

Each system is a process of its own, all of them and the busy ones on the same two cores. OpenVINO is left out where it
is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper, numpy_helper

THREADS = 2
BUSY = (0, 2, 4)
ROUNDS = 3  # of all systems, in turns
WITH_OTHER_THREADS = {"SMARTMEM_THREADS": "tvm"}
SYSTEMS = ("ours", "ours, TVM's threads", "ONNX Runtime", "ONNX Runtime, no spinning", "OpenVINO")


def numbers(*shape: int) -> np.ndarray:
    """Weights, the same in each process."""
    return (np.random.RandomState(sum(shape)).randn(*shape) * 0.1).astype("f4")


def recurrent() -> tuple[list, tuple, dict]:
    """A GRU of 12 steps and 256 units."""
    weights = {"w": numbers(1, 768, 256), "r": numbers(1, 768, 256)}
    return [helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=256)], (12, 1, 256), weights


def dense() -> tuple[list, tuple, dict]:
    """Six products of 16 x 256 by 256 x 256, each with a Relu."""
    return _layers(6, lambda at: [helper.make_node("MatMul", [at, f"{at}w"], [f"{at}c"])], (16, 256), (256, 256))


def convolutions() -> tuple[list, tuple, dict]:
    """Six 3 x 3 convolutions of 32 channels on 28 x 28, each with a Relu."""

    def make(at: str) -> list:
        return [helper.make_node("Conv", [at, f"{at}w"], [f"{at}c"], pads=[1, 1, 1, 1])]

    return _layers(6, make, (1, 32, 28, 28), (32, 32, 3, 3))


def _layers(count: int, make: Callable, shape: tuple, weight: tuple) -> tuple[list, tuple, dict]:
    nodes, at, weights = [], "x", {}
    for number in range(count):
        out = "y" if number == count - 1 else f"h{number}"
        weights[f"{at}w"] = numbers(*weight)
        nodes += [*make(at), helper.make_node("Relu", [f"{at}c"], [out])]
        at = out
    return nodes, shape, weights


NETWORKS = {"GRU 12 x 256": recurrent, "6 products": dense, "6 convolutions": convolutions}


def model_of(name: str) -> tuple[ModelProto, np.ndarray]:
    """A network and its input."""
    nodes, shape, weights = NETWORKS[name]()
    kept = [numpy_helper.from_array(array, key) for key, array in weights.items()]
    x, y = (
        helper.make_tensor_value_info("x", 1, shape),
        helper.make_tensor_value_info("y", 1, (12, 1, 1, 256) if name.startswith("GRU") else shape),
    )
    graph = helper.make_graph(nodes, "g", [x], [y], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), numbers(*shape)


def call_of(system: str, model: ModelProto, x: np.ndarray) -> Callable[[], object]:
    """An inference."""
    if system.startswith("ours"):
        import smartmem_tvm

        compiled = smartmem_tvm.compile(smartmem_tvm.from_onnx(model))
        return lambda: compiled.run(x)
    if system == "OpenVINO":
        import openvino

        settings = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        core = openvino.Core()
        request = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings).create_infer_request()
        return lambda: request.infer([x])
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    if system.endswith("no spinning"):
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


def child(system: str, network: str, seconds: float) -> None:
    """Answer each line of stdin with the times of some seconds of inferences, in ms."""
    call = call_of(system, *model_of(network))
    call()
    print("ready", flush=True)
    for _ in sys.stdin:
        times, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps(times), flush=True)


@contextlib.contextmanager
def processes(commands: list[list[str]], environments: list[dict]) -> Iterator[list[subprocess.Popen]]:
    """Some processes, killed at the end."""
    found = []
    try:
        for command, environment in zip(commands, environments, strict=True):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            found.append(subprocess.Popen(command, env={**os.environ, **environment}, text=True, **pipes))
        yield found
    finally:
        for each in found:
            each.kill()
            each.wait()


def measured(network: str, systems: list[str], seconds: float) -> dict[int, dict[str, dict]]:
    """Busy processes -> system -> the median, the mean and the ninth of ten times, in ms."""
    commands = [[sys.executable, __file__, "--child", each, network, "--seconds", str(seconds)] for each in systems]
    threads = {"TVM_NUM_THREADS": str(THREADS), "TVM_BIND_THREADS": "0"}
    settings = [threads | (WITH_OTHER_THREADS if "TVM's" in each else {}) for each in systems]
    times: dict[int, dict[str, list]] = {busy: {each: [] for each in systems} for busy in BUSY}
    with processes(commands, settings) as children:
        for each in children:
            assert each.stdout.readline() == "ready\n", each.args
        for _ in range(ROUNDS):
            for busy in BUSY:
                with processes([[sys.executable, "-c", "while True: pass"]] * busy, [{}] * busy):
                    for name, each in zip(systems, children, strict=True):
                        each.stdin.write("\n")
                        each.stdin.flush()
                        times[busy][name] += json.loads(each.stdout.readline())
    return {busy: {name: _summary(found) for name, found in row.items()} for busy, row in times.items()}


def _summary(times: list[float]) -> dict[str, float]:
    values = {"median": np.median(times), "mean": np.mean(times), "p90": np.quantile(times, 0.9)}
    return {**{name: float(f"{value:.3g}") for name, value in values.items()}, "runs": len(times)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each system, in each of three rounds")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file")
    args = parser.parse_args()
    if args.child:
        child(*args.child, args.seconds)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    systems = [each for each in SYSTEMS if each != "OpenVINO" or importlib.util.find_spec("openvino")]
    rows = {name: measured(name, systems, args.seconds) for name in NETWORKS}
    print(f"| network | busy | {' | '.join(systems)} |\n|---|---|{'---|' * len(systems)}")
    for name, by_busy in rows.items():
        for busy, row in by_busy.items():
            cells = (f"{row[each]['median']:.3g} ({row[each]['mean']:.3g})" for each in systems)
            print(f"| {name} | {busy} | {' | '.join(cells)} |")
    if args.output:
        from smartmem_tvm.tools.bench.machine_facts import machine
        from smartmem_tvm.tools.bench.results import write

        facts = {"date": date.today().isoformat(), "machine": machine(THREADS), "unit": "ms", "rows": rows}
        write(args.output, json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

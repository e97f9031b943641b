# SPDX-License-Identifier: Apache-2.0
"""The peer networks in bfloat16 on a CPU that multiplies such numbers: ours, and OpenVINO's default, in turns.

    python benchmarks/bfloat16_speed.py                          all of them, one thread, then all cores
    python benchmarks/bfloat16_speed.py --only swin_t --threads 1

OpenVINO takes bfloat16 by itself where a CPU has it. Each network is measured in a process of its own: 21 rounds in
turns, the least and the median of each system, of processor time on one thread. Weights are those of the ONNX files,
the input is standard normal. Errors are against torch in float64, relative to the largest magnitude of the output, with
torch's own bfloat16 beside them. The results go to bfloat16.json; `render.py precision` writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "bfloat16.json"
NETWORKS = {"swin_t": "Swin-T", "extra/vit_s16": "ViT-S/16", "convnext_t": "ConvNeXt-T", "resnext50": "ResNeXt-50"}
OURS = {"ours float32": "float32", "ours bfloat16": "bfloat16"}
OPENVINO = {"OpenVINO f32": {"INFERENCE_PRECISION_HINT": "f32"}, "OpenVINO default": {}}
_ROUNDS = 21


def main() -> int:
    """Measure what the command line asks for, and keep it."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, cores}))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.only[0], args.threads[0])))
        return 0
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tools.bench.results import write

    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else {}
    for threads in args.threads:
        for name in args.only:
            rows[f"{name}, {threads}"] = _in_a_process(name, threads)
            write(RESULTS, json.dumps({"machine": machine(cores), "rows": rows}, indent=1) + "\n")
            print(name, threads, json.dumps(rows[f"{name}, {threads}"]), flush=True)
    return 0 if all("failed" not in row for row in rows.values()) else 1


def _in_a_process(name: str, threads: int) -> dict:
    number = str(threads)
    environment = {**os.environ, "TVM_NUM_THREADS": number, "OMP_NUM_THREADS": number}
    command = [sys.executable, __file__, "--one", "--only", name, "--threads", number]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    return {"failed": (done.stderr.strip().splitlines() or ["it was killed"])[-1][:300]}


def measure(name: str, threads: int) -> dict:
    """One network: errors and milliseconds of each system, and the day."""
    import numpy as np
    import torch

    from smartmem_tvm.tools.bench.peers.torch import build_network

    torch.set_num_threads(threads)
    path = ROOT / "models" / f"{name}.onnx"
    module, (example,) = build_network(path)
    image = np.random.default_rng(0).standard_normal(tuple(example.shape)).astype("float32")
    tensor = torch.from_numpy(image)
    with torch.no_grad():
        narrow = module.to(torch.bfloat16)(tensor.to(torch.bfloat16)).double().numpy()
        # From the file again: what was rounded does not come back.
        exact = build_network(path)[0].double()(tensor.double()).numpy()
    systems = {**_ours(path, threads, image), **_openvino(path, threads, image)}
    results = {"torch bfloat16": narrow, **{title: run() for title, run in systems.items()}}
    largest = np.abs(exact).max()
    errors = {title: float(np.abs(found - exact).max() / largest) for title, found in results.items()}
    return {"errors": errors, **_in_turns(systems, threads), "date": time.strftime("%Y-%m-%d")}


def _in_turns(systems: dict, threads: int) -> dict:
    clock = time.process_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {title: [] for title in systems}
    for _ in range(_ROUNDS):
        for title, run in systems.items():
            start = clock()
            run()
            times[title].append(1e3 * (clock() - start))
    return {
        "ms": {title: statistics.median(found) for title, found in times.items()},
        "least_ms": {title: min(found) for title, found in times.items()},
    }


def _ours(path: Path, threads: int, image) -> dict:
    import tvm

    import smartmem_tvm as sm
    from smartmem_tvm.target import host_target

    target = tvm.target.Target({**host_target().export(), "num-cores": threads})
    mod = sm.from_onnx(str(path))

    def compiled(precision: str):
        made = sm.compile(mod, target, sm.Options(precision=precision))
        return lambda: made.run(image)[0]

    return {title: compiled(precision) for title, precision in OURS.items()}


def _openvino(path: Path, threads: int, image) -> dict:
    import openvino

    from smartmem_tvm.tools.bench.peers import complete_model

    core = openvino.Core()
    model = core.read_model(complete_model({"path": str(path), "shapes": None}).SerializeToString())
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }

    def compiled(hint: dict):
        request = core.compile_model(model, "CPU", {**settings, **hint}).create_infer_request()

        def run():
            request.infer([openvino.Tensor(image, shared_memory=True)])
            return request.get_output_tensor(0).data.copy()

        return run

    return {title: compiled(hint) for title, hint in OPENVINO.items()}


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a process of its own takes to load a compiled model and run it once, on this CPU, with several systems.

python benchmarks/resident_memory.py                # benchmarks/resident_memory.json (`make bench-resident-memory`)
python benchmarks/render.py memory_plan            # and from it the table of docs/memory_plan.md

Each system makes of a network what it would deploy: this package a folder, and another one with a memory budget of half
the weights (``compile --memory-budget``), TVM a library by its default pipeline, ONNX Runtime a model with its weights
in a file beside it, torch an exported program. A new process imports the system, gives
back what it freed, and notes its resident set. Then it loads the model, runs it once on random numbers and notes the
largest resident set that the kernel saw meanwhile (VmHWM). The difference is what counts: weights, generated code,
tensors, what loading takes on the way, and those pages of the system itself that come in only now. Systems take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "resident_memory.json"
NETWORKS = {
    "BERT-base": "bert_base",
    "BiFormer-S": "biformer_s",
    "ConvBERT": "extra/convbert",
    "ConvNeXt-T": "convnext_t",
    "GPT-NeoX-160M": "extra/gpt_neox_160m",
    "I-BERT": "extra/ibert",
    "ResNeXt-50": "resnext50",
    "SD-UNet": "sd_unet",
    "SMT-S": "smt_s",
    "Swin-T": "swin_t",
    "VGG-19": "extra/vgg19",
    "ViT-B/16": "vit_b16",
    "YOLOv8n": "yolov8n",
}
"""Name -> model, below ``models/`` and without ``.onnx``."""
OURS, HALF, TVM, ORT, TORCH = "smartmem", "smartmem-half", "tvm", "onnxruntime", "torch"
SYSTEMS = [OURS, HALF, TVM, ORT, TORCH]
INPUTS = "inputs.npz"


def make(system: str, path: Path, folder: Path) -> None:
    """Write what a system deploys of a model, in a process that ends then."""
    if system == OURS:
        from smartmem_tvm.deploy.export import load
        from smartmem_tvm.frontend.inputs import random_inputs

        compile_ours(path, folder / OURS)
        made = load(folder / OURS)
        np.savez(folder / INPUTS, *random_inputs(made.inputs, made.limits, 0).values())
    elif system == HALF:
        weights = (folder / OURS / "weights.bin").stat().st_size
        compile_ours(path, folder / HALF, "--memory-budget", f"{weights // 2}B")
    elif system == TVM:
        import tvm

        from smartmem_tvm.frontend import from_onnx_as_tvm
        from smartmem_tvm.target import host_target

        tvm.compile(from_onnx_as_tvm(str(path)), target=host_target()).export_library(str(folder / "tvm.so"))
    elif system == ORT:
        with_weights_beside(path, folder)
    else:
        import torch

        from smartmem_tvm.tools.bench.peers.torch import build_network

        module, inputs = build_network(path)
        inputs = [each.to(torch.from_numpy(given).dtype) for each, given in zip(inputs, read_inputs(folder))]
        torch.export.save(torch.export.export(module, tuple(inputs)), folder / "torch.pt2")


def with_weights_beside(path: Path, folder: Path) -> None:
    """Write ``ort.onnx`` and its weights, ``ort.bin``, drawn one by one: they may be more than a model can hold."""
    import onnx
    from onnx.external_data_helper import set_external_data

    from smartmem_tvm.light import DTYPES, drop_recipes, read_recipes

    model = onnx.load(path)
    recipes = read_recipes(model)
    with (folder / "ort.bin").open("wb") as file:
        for tensor in (each for each in model.graph.initializer if each.name in recipes):
            values = recipes[tensor.name].draw(tuple(tensor.dims)).astype(DTYPES[tensor.data_type], copy=False)
            file.write(bytes(-file.tell() % 4096))  # as onnx does, for who maps it
            tensor.raw_data = b""
            set_external_data(tensor, "ort.bin", offset=file.tell(), length=values.nbytes)
            tensor.ClearField("raw_data")
            values.tofile(file)
    drop_recipes(model)
    onnx.save(model, folder / "ort.onnx")


def compile_ours(path: Path, folder: Path, *more: str) -> None:
    """What a user does."""
    subprocess.run([sys.executable, "-m", "smartmem_tvm", "compile", str(path), "-o", folder, *more], check=True)


def read_inputs(folder: Path) -> list[np.ndarray]:
    """The arrays to run on, in the order of the model's inputs."""
    with np.load(folder / INPUTS) as arrays:
        return [arrays[name] for name in arrays.files]


def runner(system: str, folder: Path, threads: int) -> Callable[[list[np.ndarray]], object]:
    """Import a system; what is returned loads the model and runs it once."""
    if system in (OURS, HALF):
        import smartmem_tvm.deploy.build  # noqa: F401 - imported by the first run
        from smartmem_tvm.deploy.export import load

        return lambda arrays: load(folder / system).run(*arrays)
    if system == TVM:
        import tvm

        def run(arrays: list[np.ndarray]) -> object:
            vm = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(folder / "tvm.so")), tvm.cpu())
            return vm["main"](*map(tvm.runtime.tensor, arrays))

        return run
    if system == ORT:
        import onnxruntime

        def infer(arrays: list[np.ndarray]) -> object:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(folder / "ort.onnx", options, ["CPUExecutionProvider"])
            return session.run(None, {each.name: value for each, value in zip(session.get_inputs(), arrays)})

        return infer
    import torch
    import torch.export

    torch.set_num_threads(threads)

    def forward(arrays: list[np.ndarray]) -> object:
        with torch.inference_mode():
            return torch.export.load(folder / "torch.pt2").module()(*map(torch.from_numpy, arrays))

    return forward


def child(system: str, folder: Path, threads: int) -> float:
    """MB (10^6 bytes) that one process takes beyond its imports."""
    from smartmem_tvm.peak_memory import peak_mb, restart_peak

    arrays, run = read_inputs(folder), runner(system, folder, threads)
    if not restart_peak():
        raise SystemExit("this system does not measure a peak anew; Linux does.")
    before = peak_mb()
    run(arrays)
    return peak_mb() - before


def network(name: str, file: str, systems: list[str], threads: int, rounds: int) -> dict:
    """MB of each system that makes something of a network."""
    settings = {**os.environ, "TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as place:
        seen: dict[str, list[float]] = {}
        call = [sys.executable, __file__, "--folder", place, "--threads", str(threads)]
        for system in dict.fromkeys([OURS, *systems]):  # the first one leaves inputs for the others
            command = [*call, "--make", system, str(HERE.parent / "models" / f"{file}.onnx")]
            # torch has no definition of some networks, TVM no library of more than 2 GiB, and the tensors alone of some
            # take more than half of the weights.
            made = subprocess.run(command, check=system in (OURS, ORT), stdout=subprocess.DEVNULL)
            if made.returncode == 0 and system in systems:
                seen[system] = []
        for _ in range(rounds):
            for system in seen:
                command = [*call, "--measure", system]
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=settings, text=True).stdout
                seen[system].append(float(answer.split()[-1]))
    return {system: round(median(each), 1) for system, each in seen.items()}


def main() -> None:
    """Measure every network; what an earlier run measured is taken from the file."""
    parser = argparse.ArgumentParser(description="Measure what one inference takes in a process of its own.")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("networks", nargs="*", metavar="MODEL", help=f"{', '.join(NETWORKS.values())} (default: all)")
    args = parser.parse_args()
    if args.measure:
        print(child(args.measure, args.folder, args.threads))
    elif args.make:
        make(args.make, Path(args.networks[0]), args.folder)
    else:
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """Write the file, a row at a time."""
    import datetime

    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tools.bench.results import write

    rows = json.loads(args.output.read_text(encoding="utf-8"))["networks"] if args.output.exists() else []
    about = {"date": datetime.date.today().isoformat(), "machine": machine(args.threads), "rounds": args.rounds}
    known = {row["file"]: row["mb"] for row in rows}
    for name, file in NETWORKS.items():
        missing = [system for system in args.systems if system not in known.get(file, {})]
        if not missing or (args.networks and file not in args.networks):
            continue
        known[file] = known.get(file, {}) | network(name, file, missing, args.threads, args.rounds)
        rows = [{"name": n, "file": f, "mb": known[f]} for n, f in NETWORKS.items() if f in known]
        print(json.dumps({name: known[file]}), file=sys.stderr)
        write(args.output, json.dumps({**about, "networks": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare `from_torch` with torch's ONNX file, in kernels, and with TVM's importer, in time.

python benchmarks/torch_doors.py        # benchmarks/torch_doors.json (`make bench-torch-doors`)
python benchmarks/render.py frontend    # and from it the table of docs/frontend.md

Times are of the processor, so that other work beside does little to them; the less of two imports counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.onnx
import tvm
from torch.export import ExportedProgram
from torch_networks import NETWORKS, OF_TIMM, Network
from tvm.relax.frontend.torch import from_exported_program

import smartmem_tvm
from smartmem_tvm import from_onnx, from_torch, graph_cost
from smartmem_tvm.deploy.build import optimize
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import input_spec
from smartmem_tvm.target import parse_target
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.bench.systems import largest_error

RESULTS = Path(__file__).resolve().parent / "torch_doors.json"
PATIENCE = 1800  # seconds for a network
WEIGHT = 0.05  # standard deviation of biases and scales, which many networks start as constants


def network(name: str) -> dict:
    """The row of one network."""
    chosen = NETWORKS[name]
    torch.manual_seed(0)
    module = _drawn(chosen.build().eval())
    program = torch.export.export(module, chosen.inputs)
    seconds, mod = _quicker(lambda: from_torch(program))
    row = {"name": name, "package": "timm" if name in OF_TIMM else "transformers", "scale": chosen.scale}
    row |= {"from_torch": {**costs(mod), "seconds": seconds}, "tvm": _tvm(program)}
    exporter, mod_of_file = _through_file(module, chosen, program)
    row["onnx"] = {**costs(mod_of_file), "exporter": exporter}
    return row | {
        "error": error(module, chosen, mod),
        "torch": torch.__version__,
        "date": str(date.today()),
        "machine": machine(os.cpu_count()),
    }


def _drawn(module: torch.nn.Module) -> torch.nn.Module:
    """The network with noise on what starts as 0 or 1, so that its output depends on all of it."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim < 2:
                parameter.add_(WEIGHT * torch.randn_like(parameter))
    return module


def costs(mod: tvm.IRModule) -> dict:
    """Kernels, layout kernels and bytes after the graph passes for the CPU."""
    with parse_target("cpu"):
        cost = graph_cost(optimize(mod))
    return {"kernels": cost.kernels, "layout_kernels": cost.layout_kernels, "bytes": sum(cost.bytes_moved.values())}


def error(module: torch.nn.Module, chosen: Network, mod: tvm.IRModule) -> float:
    """The largest deviation from torch, relative to an output's largest value."""
    with torch.no_grad():
        found = module(*chosen.inputs)
    expected = [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]
    arrays = [each.numpy() for each in chosen.inputs]
    assert len(arrays) == len(input_spec(mod))
    return largest_error(smartmem_tvm.compile(mod, parse_target("cpu")).run(*arrays), expected)


def _through_file(module: torch.nn.Module, chosen: Network, program: ExportedProgram) -> tuple[str, tvm.IRModule]:
    """Which of torch's exporters writes a file that is taken, and the module of that."""
    ways = {
        "dynamo": lambda path: torch.onnx.export(program, f=path, dynamo=True, verbose=False),
        "TorchScript": lambda path: torch.onnx.export(module, chosen.inputs, path, dynamo=False),
    }
    refusal = ""
    for exporter, export in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            try:
                export(path)
                return exporter, from_onnx(path)
            except Exception as problem:  # of many kinds
                refusal += f"{exporter}: {problem} "
    raise UserError(f"None of torch's exporters writes a file that is taken: {refusal}")


def _tvm(program: ExportedProgram) -> dict[str, Any]:
    try:
        seconds, _ = _quicker(lambda: from_exported_program(program, unwrap_unit_return_tuple=True))
    except Exception as problem:  # of many kinds
        return {"refused": " ".join(str(problem).split())[:200]}
    return {"seconds": seconds}


def _quicker(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of the quicker of two calls, and what the last one returned."""
    times = []
    for _ in range(2):
        begin = _processor_seconds()
        result = work()
        times.append(_processor_seconds() - begin)
    return round(min(times), 2), result


def _processor_seconds() -> float:
    """Of this process and of those that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Measure each network in a process of its own; those of an interrupted run are taken from the file."""
    parser = argparse.ArgumentParser(description="Compare from_torch with torch's ONNX file and TVM's importer.")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--one", metavar="NETWORK", choices=NETWORKS, help="print the row of this one only")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"{', '.join(NETWORKS)} (default: all)")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # threads that wait for others use processor time, too
    if args.one:
        print(json.dumps(network(args.one)))
        return
    rows = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else []
    failed = []
    for name in args.networks or NETWORKS:
        if any(row["name"] == name for row in rows):
            continue
        done = subprocess.run([sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, timeout=PATIENCE)
        if done.returncode:
            failed.append(name)
            continue
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(rows[-1]), file=sys.stderr)
        write(args.output, json.dumps(rows, indent=2) + "\n")
    if failed:
        raise SystemExit(f"Not measured: {', '.join(failed)}.")


if __name__ == "__main__":
    main()

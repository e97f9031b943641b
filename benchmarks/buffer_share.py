#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the choice between buffers and textures depends on an estimate: the share of the bandwidth that buffers reach.

python benchmarks/buffer_share.py         # benchmarks/buffer_share.json: minutes, any machine will do
python benchmarks/render.py layouts       # and from it a table of docs/layouts.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import tvm

from smartmem_tvm import Options, from_onnx
from smartmem_tvm.ir.graph import graphs, read_log
from smartmem_tvm.ir.kernel import emit
from smartmem_tvm.pipeline import graph_phases, run_phases
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import parse_target
from smartmem_tvm.texture_trial import TextureTrial
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.transform import PlaceTextures

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "buffer_share.json"
DEVICE = "adreno-740"
NETWORKS = {"Swin-T": "swin_t", "ResNeXt-50": "resnext50"}
SHARES = (0.4, 0.6, 1.0)


def choices(file: str) -> list[dict]:
    """For each share what is in textures, and the modelled milliseconds of all kernels, by choice and without."""
    target = parse_target(DEVICE)
    phases = graph_phases(target)
    placing = [phase.name for phase in phases].index("textures")
    with target:
        before = run_phases(from_onnx(str(HERE.parent / "models" / f"{file}.onnx")), phases[:placing], Options())
        return [choice(before, target, share) for share in SHARES]


def choice(before: tvm.IRModule, target: tvm.target.Target, share: float) -> dict:
    """The same of one share."""
    trial = TextureTrial(target)
    trial.device = replace(TARGETS[DEVICE], buffer_share=share)
    chosen = PlaceTextures(target, trial)(before)
    most = PlaceTextures(target, lambda kernel: replace(trial(kernel), estimate=lambda: None))(before)
    placed = {kind: [e["memory"] for e in read_log(chosen) if _places(e, kind)] for kind in ("tensor", "weight")}
    return {
        "share": share,
        **{f"{kind}s": [memory.count("texture"), len(memory)] for kind, memory in placed.items()},
        "ms": {
            name: _milliseconds(mod, trial) for name, mod in (("buffers", before), ("all", most), ("chosen", chosen))
        },
    }


def _places(entry: dict, kind: str) -> bool:
    return entry["pass"] == "PlaceTextures" and entry["kind"] == kind


def _milliseconds(mod: tvm.IRModule, trial: Callable) -> float:
    kernels = [node.kernel for graph in graphs(mod) for node in graph if node.kernel is not None]
    return round(1e3 * sum(trial(emit(kernel)).modelled for kernel in kernels), 3)


def main() -> None:
    """Choose for all networks and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = []
    for name, file in NETWORKS.items():
        print(f"{name} ...", file=sys.stderr)
        rows.append({"name": name, "file": file, "choices": choices(file)})
    write(args.into, json.dumps({"device": DEVICE, "networks": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

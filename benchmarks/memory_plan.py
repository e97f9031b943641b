#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an inference takes for tensors between kernels: our plan, TVM's of the same kernels, and the least possible.

python benchmarks/memory_plan.py            # benchmarks/memory_plan.json (`make bench-memory-plan`)
python benchmarks/render.py memory_plan     # and from it the table of docs/memory_plan.md

Nothing is run: the figures are those of the plans. What a network returns is the caller's and in none of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import tvm

from smartmem_tvm import Options, from_onnx
from smartmem_tvm.deploy.memory_plan import memory_plan
from smartmem_tvm.pass_registry import make_pass
from smartmem_tvm.pipeline import phases_of, run_phases
from smartmem_tvm.planner.arena import Block, lower_bound
from smartmem_tvm.target import parse_target
from smartmem_tvm.tools.bench.results import write

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "memory_plan.json"
NETWORKS = {
    "AutoFormer-S": "autoformer_s",
    "BERT-base": "bert_base",
    "BiFormer-S": "biformer_s",
    "Conformer": "conformer",
    "ConvBERT": "extra/convbert",
    "ConvNeXt-T": "convnext_t",
    "CrossFormer-S": "crossformer_s",
    "CSWin-S": "cswin_s",
    "EfficientViT-B3": "efficientvit_b3",
    "FLatten": "flatten_cswin_s",
    "GPT-NeoX-160M": "extra/gpt_neox_160m",
    "I-BERT": "extra/ibert",
    "RegNet": "regnet",
    "ResNeXt-50": "resnext50",
    "SD text encoder": "sd_text_encoder",
    "SD UNet": "sd_unet",
    "SD VAE decoder": "sd_vae_decoder",
    "SMT-S": "smt_s",
    "Swin-T": "swin_t",
    "VGG-19": "extra/vgg19",
    "ViT-B/16": "vit_b16",
    "YOLOv8n": "yolov8n",
}
"""Name -> model, below ``models/`` and without ``.onnx``."""
BEFORE = ("relax.ToNonDataflow", "relax.RemovePurityChecking", "relax.CallTIRRewrite")
OURS, TVM = ("plan-memory", "relax.StaticPlanBlockMemory"), ("relax.StaticPlanBlockMemory",)


def network(name: str, file: str, kind: str) -> dict:
    """The row of one network on a kind of target."""
    target = parse_target(kind)
    phases = [
        phase for phase in phases_of(target) if phase.name not in ("lower", "plan_memory", "cuda_graph", "finish")
    ]
    with target:
        kernels = run_phases(from_onnx(str(HERE.parent / "models" / f"{file}.onnx")), phases, Options())
        kernels = passed(kernels, BEFORE, target)
        begin = time.perf_counter()
        ours = memory_plan(passed(kernels, OURS, target))
        seconds = time.perf_counter() - begin
        theirs = memory_plan(passed(kernels, TVM, target))
    return {"name": name, "file": file, "target": kind, **facts(ours, theirs), "seconds": round(seconds, 2)}


def passed(mod: tvm.IRModule, passes: tuple[str, ...], target: tvm.target.Target) -> tvm.IRModule:
    """The module after these passes."""
    for name in passes:
        mod = make_pass(name, Options(), target)(mod)
    return mod


def facts(ours: dict, theirs: dict) -> dict:
    """Bytes and allocations of both plans, and the largest sum of live bytes at any step."""
    held = [each for each in ours["tensors"] if each["kind"] != "result"]
    return {
        "steps": len(ours["steps"]),
        "tensors": len(held),
        "live_bytes": lower_bound([Block(each["bytes"], each["first"], each["last"]) for each in held]),
        "ours": allocated(ours),
        "tvm": allocated(theirs),
    }


def allocated(plan: dict) -> dict:
    """Bytes and number of storages, and of the tensors that each get one of their own, but for results."""
    sizes = [each["bytes"] for each in plan["storages"]]
    sizes += [each["bytes"] for each in plan["tensors"] if each["storage"] is None and each["kind"] != "result"]
    return {"bytes": sum(sizes), "allocations": len(sizes)}


def main() -> None:
    """Plan every network for every target; those of an interrupted run are taken from the file."""
    parser = argparse.ArgumentParser(description="Compare memory plans with TVM's and with the least possible.")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--targets", nargs="+", default=["cpu", "cuda"], metavar="TARGET")
    parser.add_argument("networks", nargs="*", metavar="MODEL", help=f"{', '.join(NETWORKS.values())} (default: all)")
    args = parser.parse_args()
    rows = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else []
    for name, file in NETWORKS.items():
        for kind in args.targets:
            known = any((row["file"], row["target"]) == (file, kind) for row in rows)
            if known or (args.networks and file not in args.networks):
                continue
            rows.append(network(name, file, kind))
            print(json.dumps(rows[-1]), file=sys.stderr)
            write(args.output, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

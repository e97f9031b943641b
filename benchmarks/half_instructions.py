#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels in half arithmetic for phones: instructions by type, and memory accesses beside those in float32.

python benchmarks/half_instructions.py                            # benchmarks/half_instructions.json
python benchmarks/half_instructions.py --only swin_t mali-g76     # some of it again
python benchmarks/render.py precision                             # and from it a part of docs/precision.md

Nothing is run, any machine with clang will do. Every kernel is compiled to LLVM's IR (`llvm_counts`), and the accesses
are those of `smartmem accesses`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import tvm
from llvm_counts import Counts, KernelCounts, clang, kernel_counts, llvm_of

import smartmem_tvm
from smartmem_tvm.analysis.network_access import network_accesses, total
from smartmem_tvm.deploy.schedules import our_schedules
from smartmem_tvm.deploy.textures import staged
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.tables.targets import Row
from smartmem_tvm.target import parse_target, target_row
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.isa.sources import kernel_programs

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "half_instructions.json"
NETWORKS = ("swin_t", "vit_b16", "convnext_t", "resnext50", "bert_base")
DEVICES = ("adreno-740", "mali-g76")
PRECISIONS = ("float32", "half")
MOST = 0.55  # of the lines in float32 that halves may ask for, and of the bytes from memory


def instructions(scheduled: tvm.IRModule, target: tvm.target.Target) -> dict[str, dict]:
    """What the kernels of each rule do; every kernel counts once, however often it is launched."""
    rules, found = kernel_rules(scheduled), {}
    for name, code in llvm_of(kernel_programs(scheduled, target)).items():
        rule = rules.get(re.sub(r"_kernel(_\d+)?$", "", name), {"name": "-"})["name"]
        found.setdefault(rule, []).append(kernel_counts(code, name))
    return {rule: summary(found[rule]) for rule in sorted(found)}


def summary(kernels: list[KernelCounts]) -> dict:
    """Plain data of kernels: all of them, and their innermost loops of products of halves."""
    products = [loop for kernel in kernels for loop in kernel.products]
    return {
        "kernels": len(kernels),
        "whole": _numbers(sum((kernel.whole for kernel in kernels), Counts())),
        "products": {"loops": len(products), **_numbers(sum(products, Counts()))},
        "rounds_in_loops": sum(loop.rounded > 0 for kernel in kernels if kernel.loops for loop in kernel.products),
        "moved": _moved(sum((kernel.whole for kernel in kernels), Counts()).moved),
    }


def _numbers(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in ("half", "single", "half_products", "widened", "rounded")}


def _moved(moved: Counter) -> dict[str, int]:
    """``buffers 8`` -> how many halves instructions of that width move, in the code as written."""
    found: Counter = Counter()
    for (_, space, dtype, width), count in moved.items():
        if space in ("global", "texel") and (dtype == "half" or space == "texel"):
            found[f"{'buffers' if space == 'global' else 'texels'} {width}"] += count * width
    return dict(sorted(found.items()))


def accesses(scheduled: tvm.IRModule, target: tvm.target.Target, row: Row) -> dict[str, float]:
    """Lines that caches are asked for, and bytes from memory, as the model of the device has them."""
    kernels = network_accesses(staged(scheduled, target), row)
    counted = total(kernels)
    left = sum(each.launches for each in kernels if each.accesses is None)
    return {"lines": counted.lines, "bytes": counted.l2_misses * row.sector_bytes, "not_modelled": left}


def network(name: str, device: str) -> dict:
    """The figures of a network for a device."""
    target, start = parse_target(device), time.perf_counter()
    mod = smartmem_tvm.from_onnx(HERE.parent / "models" / f"{name}.onnx")
    made = {each: our_schedules(mod, target, smartmem_tvm.Options(precision=each)) for each in PRECISIONS}
    found = {"rules": instructions(made["half"], target)}
    found["accesses"] = {each: accesses(scheduled, target, target_row(target)) for each, scheduled in made.items()}
    print(f"{name}, {device}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return {**found, "date": datetime.date.today().isoformat()}


def main() -> None:
    """Count all networks for all devices and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some networks, some devices")
    args = parser.parse_args()
    known = json.loads(args.into.read_text(encoding="utf-8")) if args.into.exists() else {}
    rows = known.get("rows", {})
    for name in NETWORKS:
        for device in DEVICES:
            asked = {*args.only} & {*NETWORKS} or {*NETWORKS}, {*args.only} & {*DEVICES} or {*DEVICES}
            if name in asked[0] and device in asked[1]:
                rows[f"{name}, {device}"] = network(name, device)
                _write(args.into, rows)


def _write(path: Path, rows: dict) -> None:
    version = subprocess.run([clang(), "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    order = [f"{name}, {device}" for name in NETWORKS for device in DEVICES]
    content = {"compiler": version, "rows": {key: rows[key] for key in order if key in rows}}
    write(path, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

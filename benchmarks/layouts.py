#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Count layout transitions, and model what copies of tensors in a second order would save.

python benchmarks/layouts.py              # benchmarks/layouts.json (`make bench-layouts`)
python benchmarks/render.py layouts       # and from it the tables of docs/layouts.md

Nothing is run: the figures are those of the graphs, and of the cache model of `smartmem accesses`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from smartmem_tvm import Options, from_onnx, graph_cost
from smartmem_tvm.analysis.demands import demands
from smartmem_tvm.analysis.memory_access import Accesses, kernel_accesses
from smartmem_tvm.analysis.transitions import strided
from smartmem_tvm.frontend import from_onnx_as_tvm
from smartmem_tvm.graph_report import explain
from smartmem_tvm.ir.graph import Graph, graphs, read_log
from smartmem_tvm.ir.kernel import Kernel, emit, shape_of
from smartmem_tvm.ir.storage import stored_as
from smartmem_tvm.pipeline import BASELINE_PHASES, graph_phases, run_phases
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import parse_target
from smartmem_tvm.texture_trial import TextureTrial
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.transform import LowerRotations, PlaceTextures, SelectLayout

HERE = Path(__file__).resolve().parent
DEVICE = "adreno-740"
NETWORKS = {
    "Swin-T": "swin_t",
    "ViT-B/16": "vit_b16",
    "ViT-S/16": "extra/vit_s16",
    "ConvNeXt-T": "convnext_t",
    "ResNeXt-50": "resnext50",
    "BERT-base": "bert_base",
    "EfficientViT-B3": "efficientvit_b3",
}
"""Name -> model, below ``models/`` and without ``.onnx``."""


def network(name: str, file: str, target: tvm.target.Target) -> dict:
    """The row of one network: transitions of each graph, what is left and why, and what copies would save."""
    row, mods = counts(file, target)
    phases = graph_phases(target)
    with target:
        placed = run_phases(mods["before"], phases[_placing(phases) :], Options())
    mods["placed"] = placed
    return {
        "name": name,
        "file": file,
        **row,
        "placed": graph_cost(placed).layout_transitions,
        "in_textures": {plan: _in_textures(mods[plan]) for plan in ("placed", "textures")},
        "left": {plan: _left(mods[plan]) for plan in ("buffers", "placed", "textures")},
        "copies": copies(mods["buffers"], target),
    }


def counts(file: str, target: tvm.target.Target) -> tuple[dict, dict]:
    """Transitions that no model of the device has a hand in, and the graphs that they were counted on."""
    path = str(HERE.parent / "models" / f"{file}.onnx")
    phases = graph_phases(target)
    with target:
        theirs = graph_cost(run_phases(from_onnx_as_tvm(path, {}), BASELINE_PHASES, Options()))
        before = run_phases(from_onnx(path), phases[: _placing(phases)], Options())
    # It names no device, so that no pass asks whether textures are quicker.
    generic = tvm.target.Target("qcom/adreno-opencl-texture").with_host("llvm")
    mods = {
        "before": before,
        "buffers": SelectLayout()(before),
        "textures": SelectLayout()(PlaceTextures(generic, TextureTrial(generic))(before)),
    }
    row = {"tvm": theirs.layout_transitions, "tvm_copies": theirs.layout_kernels}
    return row | {plan: graph_cost(mod).layout_transitions for plan, mod in mods.items()}, mods


def _placing(phases: tuple) -> int:
    return [phase.name for phase in phases].index("textures")


def _in_textures(mod: tvm.IRModule) -> list[int]:
    """Activations in textures, and all that a kernel writes."""
    log = [e for e in read_log(mod) if e["pass"] == "PlaceTextures" and e["kind"] == "tensor"]
    return [sum(each["memory"] == "texture" for each in log), len(log)]


def _left(mod: tvm.IRModule) -> list[dict]:
    """How many tensors are left for each reason; what differs between tensors follows a semicolon."""
    found = Counter((each["memory"], each["reason"].partition(";")[0]) for each in explain(mod)["strided"])
    return [{"tensors": n, "memory": memory, "reason": reason} for (memory, reason), n in found.most_common()]


def copies(mod: tvm.IRModule, target: tvm.target.Target) -> dict:
    """What a copy of each tensor in the order of those readers that its own order does not serve would save.

    Returns
    -------
    dict
        ``tensors``; cache lines that their readers ask for, and that come from memory, as they are (``lines``,
        ``misses``) and with copies (``lines_with_copies``, ``misses_with_copies``); lines of the copies themselves,
        each written once (``written``).
    """
    model = _Model(target)
    found = dict.fromkeys(("tensors", "lines", "misses", "lines_with_copies", "misses_with_copies", "written"), 0)
    for graph in graphs(mod):
        for tensor in strided(graph):
            if tensor.fixed is not None:
                continue
            found["tensors"] += 1
            found["written"] += 4 * prod(tensor.shape) / TARGETS[DEVICE].line_bytes
            for kernel, position in _readers(graph, tensor.tensor):
                served = with_copy(kernel, kernel.inputs[position])
                if served is not None:
                    for suffix, each in (("", model(kernel)), ("_with_copies", model(served))):
                        found[f"lines{suffix}"] += each.lines
                        found[f"misses{suffix}"] += each.l2_misses
    return {name: round(value) for name, value in found.items()}


def _readers(graph: Graph, tensor: str) -> list[tuple[Kernel, int]]:
    return [
        (node.kernel, position)
        for node in graph
        if node.kernel is not None
        for position, arg in enumerate(node.args)
        if getattr(arg, "name", None) == tensor
    ]


def with_copy(kernel: Kernel, buffer) -> Kernel | None:
    """The kernel with those stages that `buffer` does not serve reading a copy of it; None if it serves all.

    The copy is contiguous along the last dimension that they want.
    """
    shape = shape_of(buffer)
    fast = max(dim for dim, extent in enumerate(shape) if extent > 1)
    stages, copy, order = [], None, []
    for stage in kernel.stages:
        alone = replace(kernel, stages=(stage,))
        wanted = [demand.dims for demand in demands(alone, "it").get(buffer, ()) if fast not in demand.dims]
        if wanted and stage.reduction:
            if copy is None:
                last = max(max(dims) for dims in wanted)
                order = [dim for dim in range(len(shape)) if dim != last] + [last]
                copy = tirx.decl_buffer([shape[dim] for dim in order], buffer.dtype, "copy")
            stage = stored_as(alone, buffer, copy, lambda at, order=order: [at[dim] for dim in order]).stages[0]
        stages.append(stage)
    if copy is None:
        return None
    loads = [load for stage in stages for load in stage.loads]
    inputs = [each for each in (*kernel.inputs, copy) if any(load.source.same_as(each) for load in loads)]
    return Kernel(tuple(inputs), kernel.outputs, tuple(stages))


class _Model:
    """Memory accesses of scheduled kernels on the device; equal kernels are modelled once."""

    def __init__(self, target: tvm.target.Target):
        self.target, self.known = target, {}

    def __call__(self, kernel: Kernel) -> Accesses:
        mod = tvm.IRModule({"it": emit(kernel, {"global_symbol": "it"})})
        key = tvm_ffi.structural_hash(mod["it"])
        if key not in self.known:
            with self.target:
                scheduled = tvm.transform.Sequential([LowerRotations(), ScheduleKernels()])(mod)
            self.known[key] = kernel_accesses(scheduled["it"], TARGETS[DEVICE])
        return self.known[key]


def main() -> None:
    """Count all networks and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=HERE / "layouts.json")
    parser.add_argument("--only", help="count one of the networks again, by name")
    args = parser.parse_args()
    known = json.loads(args.into.read_text(encoding="utf-8"))["networks"] if args.only and args.into.exists() else []
    rows, target = {row["name"]: row for row in known}, parse_target(DEVICE)
    for name, file in NETWORKS.items():
        if args.only in (None, name):
            print(f"{name} ...", file=sys.stderr)
            rows[name] = network(name, file, target)
            content = {"device": DEVICE, "networks": [rows[each] for each in NETWORKS if each in rows]}
            write(args.into, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

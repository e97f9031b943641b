#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold the model of memory accesses against the hardware counters of an NVIDIA GPU, kernel by kernel.

python benchmarks/counters.py                  # benchmarks/counters_h100.json (`make bench-counters`): a minute
python benchmarks/counters.py --folder DIR     # keep kernels and counters in DIR, and go on from what is there
python benchmarks/render.py memory_accesses           # and from it the tables of docs/memory_accesses.md

It needs a CUDA device, nvcc, and ncu (Nsight Compute) with the permission to read counters. With all of its files in
DIR it only models the kernels again, on any machine.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tvm

from smartmem_tvm.analysis.memory_access import Accesses, kernel_accesses
from smartmem_tvm.analysis.network_access import network_accesses
from smartmem_tvm.deploy.gpu_build import build_kernels
from smartmem_tvm.deploy.schedules import Side, sides
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, from_onnx_as_tvm, read_model
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import parse_target
from smartmem_tvm.tools.bench.results import write

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "counters_h100.json"
DEVICE = "h100"
NETWORKS = ("swin_t", "resnext50")
EACH = 6
"""Kernels of each network and side: from small to large, evenly over their ranks."""
COUNTERS = {
    "load_lines": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "store_lines": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "l1_misses": ("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum"),
    "buffer_misses": ("dram__sectors_read.sum",),
}
"""Field of `Accesses` -> counters that are added up. What is written to memory waits in the second level."""
NCU_OPTIONS = (
    *("--csv", "--page", "details", "--print-units", "base", "--cache-control", "all", "--clock-control", "none"),
    *("--target-processes", "all", "--kernel-name", "regex:k[0-9][0-9]_"),
)
COUNTED, TIMED, KERNELS, FACTS = "ncu.csv", "times.json", "kernels.json", "facts.json"


def choose(folder: Path) -> None:
    """Schedule the networks and keep some of their kernels, the smallest, the largest and some in between."""
    target, kernels, facts = parse_target("cuda"), {}, {}
    for network in NETWORKS:
        model = read_model(str(HERE.parent / "models" / f"{network}.onnx"), {})
        for side in sides(target).values():
            for name, func in _some(side, model):
                symbol = f"k{len(kernels):02d}_{name}"[:60]
                kernels[symbol] = func.with_attr("global_symbol", symbol)
                facts[symbol] = {"network": network, "side": side.label, "kernel": name}
    write(folder / KERNELS, tvm.ir.save_json(tvm.IRModule(kernels)))
    write(folder / FACTS, json.dumps(facts))


def _some(side: Side, model) -> Iterator[tuple[str, tvm.tirx.PrimFunc]]:
    mod = side.schedule((from_onnx_as_tvm if side.baseline else from_onnx)(model))
    modelled = [each.name for each in network_accesses(mod, TARGETS[DEVICE]) if each.accesses]
    modelled.reverse()
    for at in dict.fromkeys(np.linspace(0, len(modelled) - 1, EACH).round().astype(int)):
        yield modelled[at], mod[modelled[at]]


def run(folder: Path, launch: Callable) -> None:
    """Build the kernels and hand each to `launch`, with arguments drawn at random."""
    mod, rng, device = _kernels(folder), np.random.default_rng(0), tvm.cuda()
    built = build_kernels(mod, parse_target("cuda"))
    for _, func in mod.functions_items():
        params = [([int(n) for n in each.ty.shape], str(each.ty.dtype)) for each in func.params]
        # Of what indexes another tensor only 0 and 1, which are inside of any.
        arrays = [(rng.random(shape) * (2 if "int" in dtype else 1)).astype(dtype) for shape, dtype in params]
        launch(built, str(func.attrs["global_symbol"]), [tvm.runtime.tensor(each, device) for each in arrays])
        device.sync()


def _kernels(folder: Path) -> tvm.IRModule:
    return tvm.ir.load_json((folder / KERNELS).read_text(encoding="utf-8"))


def measure_times(folder: Path) -> None:
    """Microseconds of each kernel on empty caches."""
    found: dict = {}

    def launch(built, name: str, arguments: list) -> None:
        flush = tvm.get_global_func(FLUSH, allow_missing=True)
        timer = built.time_evaluator(name, tvm.cuda(), number=1, repeat=7, f_preproc=FLUSH if flush else "")
        built[name](*arguments)
        found[name] = round(float(np.median(timer(*arguments).results)) * 1e6, 3)

    run(folder, launch)
    today = datetime.date.today().isoformat()
    write(folder / TIMED, json.dumps({"device": tvm.cuda().device_name, "date": today, "us": found}))


def count(folder: Path) -> None:
    """Launch every kernel once under Nsight Compute, with empty caches."""
    ncu, log = profiler(), folder / COUNTED
    partial = log.with_suffix(".partial")
    metrics = ",".join(metric for metrics in COUNTERS.values() for metric in metrics)
    options = [*NCU_OPTIONS, "--metrics", metrics, "--log-file", str(partial)]
    child = [sys.executable, __file__, "--launch", "--folder", str(folder)]
    done = subprocess.run([ncu, *options, *child], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr + (partial.read_text(encoding="utf-8") if partial.exists() else "")
    if "ERR_NVGPUCTRPERM" in said:
        raise UserError("the counters are closed to this user (ERR_NVGPUCTRPERM); run as root, or have them opened.")
    if '"Metric Value"' not in said:
        raise UserError(f"{ncu} counted nothing; the last it said is: {' '.join(said.split()[-40:])}")
    partial.replace(log)


def profiler() -> str:
    """The path of ncu."""
    places = "usr/local/cuda*/bin/ncu", "opt/nvidia/nsight-compute/*/ncu"
    known = (str(path) for place in places for path in Path("/").glob(place))
    found = os.environ.get("NCU") or shutil.which("ncu") or next(known, None)
    if found is None:
        raise UserError("the counters are read by ncu, which is not on PATH; install NVIDIA Nsight Compute.")
    return found


def counters(text: str) -> dict[str, dict[str, float]]:
    """Kernel -> metric -> its value over all launches, from Nsight Compute's CSV."""
    found: dict = {}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        # A kernel of several launches has them numbered.
        name = re.sub(r"_kernel(_\d+)?$", "", row["Kernel Name"].partition("(")[0])
        metrics = found.setdefault(name, {})
        metric, value = row["Metric Name"], float(row["Metric Value"].replace(",", ""))
        metrics[metric] = metrics.get(metric, 0.0) + value
    return found


def compare(folder: Path) -> dict:
    """Every kernel with what the model says, and what was counted."""
    facts, timed = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (FACTS, TIMED))
    counted = counters((folder / COUNTED).read_text(encoding="utf-8"))
    kernels = {str(func.attrs["global_symbol"]): func for _, func in _kernels(folder).functions_items()}
    rows = []
    for name, known in facts.items():
        found = kernel_accesses(kernels[name], TARGETS[DEVICE])
        row = {"name": name, **known, "us": timed["us"][name], "memory_us": _microseconds(found)}
        row["model"] = {column: round(getattr(found, column)) for column in COUNTERS}
        row["counters"] = {each: round(sum(counted[name][m] for m in COUNTERS[each])) for each in COUNTERS}
        rows.append(row)
    return {"device": timed["device"], "date": timed["date"], "row": DEVICE, "kernels": rows}


def _microseconds(found: Accesses) -> float:
    """What its bytes take, at least, at the bandwidths of the device's row."""
    row = TARGETS[DEVICE]
    times = found.lines / row.buffer_bandwidth, found.l1_misses / row.l2_bandwidth, found.l2_misses / row.bandwidth
    return round(1e6 * row.sector_bytes * max(times), 3)


FLUSH = "l2_cache_flush_cuda"
STEPS = {KERNELS: choose, TIMED: measure_times, COUNTED: count}
"""File -> what makes it, one after the other."""


def main() -> None:
    """Do what is missing in the folder, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="keep kernels, times and counters here")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launch:
        run(args.folder, lambda built, name, arguments: built[name](*arguments))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for file, step in STEPS.items():
            if not (folder / file).exists():
                _needs_device()
                print(f"{file} ...", file=sys.stderr)
                step(folder)
        write(args.into, json.dumps(compare(folder), indent=1) + "\n")


def _needs_device() -> None:
    if not tvm.cuda().exist:
        raise UserError("hardware counters need a CUDA device, and this machine has none; use one with an NVIDIA GPU.")
    profiler()


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Call an encoder through torch.compile with ten lengths, in a process that compiles them and in one that loads them.

python benchmarks/torch_sizes.py        # benchmarks/torch_sizes.json (`make bench-torch-doors`)

Two layers of 256 numbers, 8 heads, random weights. Seconds are of the ten first calls: torch's capture, the imports of
this package and of TVM, and the kernels themselves are in them; the import of torch is not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import date
from pathlib import Path

import torch
from torch import nn

RESULTS = Path(__file__).resolve().parent / "torch_sizes.json"
WIDTH, HEADS, LAYERS = 256, 8, 2
LENGTHS = (16, 24, 32, 40, 48, 56, 64, 72, 80, 96)


def calls() -> dict:
    """Time the ten calls of this process."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    mine = torch.compile(model, backend="smartmem")
    seconds, processor, error = [], [], 0.0
    with torch.inference_mode():
        for length in LENGTHS:
            x = torch.randn(1, length, WIDTH)
            begin, used = time.perf_counter(), _processor_seconds()
            found = mine(x)
            seconds.append(time.perf_counter() - begin)
            processor.append(_processor_seconds() - used)
            expected = model(x)
            error = max(error, float((found - expected).abs().max() / expected.abs().max()))
    from smartmem_tvm import torch_backend
    from smartmem_tvm.tools.bench.machine_facts import machine

    counts = torch_backend.counts()
    return {
        "seconds": round(sum(seconds), 2),
        "each": [round(each, 2) for each in seconds],
        "processor_seconds": round(sum(processor), 2),
        "each_processor": [round(each, 2) for each in processor],
        **{name: getattr(counts, name) for name in ("compiled", "loaded", "eager_calls")},
        "error": error,
        "torch": torch.__version__,
        "date": str(date.today()),
        "machine": machine(os.cpu_count()),
    }


def _processor_seconds() -> float:
    """Of this process and of those that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Run two processes with one folder of compiled graphs, which is empty at first."""
    parser = argparse.ArgumentParser(description="Time torch.compile with ten sizes, compiled and loaded.")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--one", action="store_true", help="print the row of this process only")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.one:
        print(json.dumps(calls()))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for process in ("first", "second"):
            env = {**os.environ, "SMARTMEM_TORCH_CACHE": folder}
            begin = time.perf_counter()
            done = subprocess.run([sys.executable, __file__, "--one"], stdout=subprocess.PIPE, check=True, env=env)
            whole = round(time.perf_counter() - begin, 2)
            rows.append({"process": process, "whole_process": whole, **json.loads(done.stdout.splitlines()[-1])})
            print(json.dumps(rows[-1]), file=sys.stderr)
    args.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

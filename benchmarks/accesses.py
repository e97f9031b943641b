#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Model the memory accesses and cache misses of networks on a phone, ours step by step and TVM's.

python benchmarks/accesses.py                   # benchmarks/accesses.json (`make bench-accesses`)
python benchmarks/accesses.py --only CSWin-S    # one network again
python benchmarks/render.py memory_accesses            # and from it docs/memory_accesses.md and its chart

Nothing is run, any machine will do: see `smartmem accesses`, which is called for each network.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

from smartmem_tvm.tools.bench.results import write

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "accesses.json"
DEVICE = "adreno-740"
NETWORKS = {
    "Swin-T": "swin_t",
    "ViT-B/16": "vit_b16",
    "ConvNeXt-T": "convnext_t",
    "ResNeXt-50": "resnext50",
    "BERT-base": "bert_base",
    "CSWin-S": "cswin_s",
}
"""Name -> model, below ``models/`` and without ``.onnx``."""


def network(file: str) -> dict:
    """What `smartmem accesses` says of a network, in a process of its own, without its kernels one by one."""
    model = f"models/{file}.onnx"
    command = [sys.executable, "-m", "smartmem_tvm", "accesses", model, "--target", DEVICE, "--no-profiles", "--json"]
    done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout)
    for side in said["sides"].values():
        del side["kernels"]
    return said


def main() -> None:
    """Model all networks and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=NETWORKS, help="model one of the networks again")
    args = parser.parse_args()
    rows = json.loads(args.into.read_text(encoding="utf-8"))["networks"] if args.only and args.into.exists() else {}
    for name, file in NETWORKS.items():
        if args.only in (None, name):
            print(f"{name} ...", file=sys.stderr)
            rows[name] = {**network(file), "date": datetime.date.today().isoformat()}
            content = {"networks": {each: rows[each] for each in NETWORKS if each in rows}}
            write(args.into, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

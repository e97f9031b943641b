# SPDX-License-Identifier: Apache-2.0
"""Every network of SmartMem's Table 7 on every target: what ONNX Runtime computes, or how far from it.

    python benchmarks/accuracy.py                                  this machine's CPU, then its first OpenCL device
    python benchmarks/accuracy.py --target cuda --jobs 6 --into benchmarks/accuracy_h100.json
    python benchmarks/accuracy.py --missing                        go on: only what the file lacks, or what failed
    python benchmarks/accuracy.py --target opencl --only swin_t vit_b16

Each network is compiled, run and compared by `smartmem verify` in a process of its own, which is given up after
--timeout seconds. A result is in the file as soon as there is one. The exit code is 1 if something failed or is wrong.
`render.py accuracy` writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from pathlib import Path

from smartmem_tvm.tables.suite import SMARTMEM18
from smartmem_tvm.target import device_of, is_gpu, parse_target
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tune.host import cpu_name

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "accuracy.json"
TOLERANCE = 1e-4  # of the largest magnitude of an output
FILES = [entry.file for entry in SMARTMEM18]


def main() -> int:
    """Do what the command line asks for; returns the exit code."""
    args = _arguments()
    right = True
    for target in args.target:
        section = _section(args.into, target)
        models = [each for each in args.only if not (args.missing and _is_right(section["networks"].get(each, {})))]
        with ThreadPoolExecutor(args.jobs) as pool:
            waiting = {pool.submit(verify, model, target, args.timeout): model for model in models}
            for done in as_completed(waiting):
                row = done.result()
                section["networks"][waiting[done]] = row
                _keep(args.into, section)
                right &= _is_right(row)
                print(f"{target:8} {waiting[done]:16} {_line(row)}", flush=True)
    return 0 if right else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=["cpu", "opencl"], help="(default: cpu opencl)")
    parser.add_argument("--only", nargs="+", default=FILES, choices=FILES, metavar="NAME", help="in models/, no .onnx")
    parser.add_argument("--missing", action="store_true", help="leave out what is in the file and right")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time, each with a share of the cores")
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="for one (default: an hour)")
    parser.add_argument("--into", type=Path, default=RESULTS, metavar="FILE", help=f"(default: {RESULTS.name})")
    return parser.parse_args()


def verify(model: str, target: str, timeout: float, *options: str, tolerance: float = TOLERANCE) -> dict:
    """The row of one network: ``error`` relative to the largest output, ``seconds``, ``date``; or why it ``failed``."""
    path = ROOT / "models" / f"{model}.onnx"
    command = [sys.executable, "-m", "smartmem_tvm", "verify", str(path), "--target", target, "--json"]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, "--rtol", str(tolerance), *options], capture_output=True, text=True, timeout=timeout, check=False
        )
        row = _read(done)
    except subprocess.TimeoutExpired:
        row = {"failed": f"no answer within {timeout:g} s"}
    return {**row, "seconds": round(time.perf_counter() - start, 1), "date": date.today().isoformat()}


def _read(done: subprocess.CompletedProcess) -> dict:
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"failed": f"exit code {done.returncode}: {last}"}
    if "max_rel_err" not in found:
        return {"failed": str(found.get("error", found))}
    worst = {name: each["max_rel_err"] for name, each in found["outputs"].items()}
    return {"error": found["max_rel_err"], "ok": found["ok"], "peak_mb": round(found["peak_mb"]), "outputs": worst}


def _is_right(row: dict) -> bool:
    return bool(row.get("ok")) and row["error"] <= TOLERANCE


def _line(row: dict) -> str:
    found = row.get("failed") or f"{row['error']:.1e}{'' if _is_right(row) else '  WRONG'}"
    return f"{found}   {row['seconds']:.0f} s"


def _section(path: Path, target: str) -> dict:
    """What the file has of this target on this device, with the machine as it is now."""
    parsed = parse_target(target)
    device = device_of(parsed).device_name if is_gpu(parsed) else cpu_name()
    known = _sections(path).get(f"{target}, {device}", {})
    here = {"target": target, "device": device, "machine": machine(len(os.sched_getaffinity(0)))}
    return {**here, "networks": known.get("networks", {})}


def _sections(path: Path) -> dict[str, dict]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _keep(path: Path, section: dict) -> None:
    networks = {file: section["networks"][file] for file in FILES if file in section["networks"]}
    sections = {**_sections(path), f"{section['target']}, {section['device']}": {**section, "networks": networks}}
    write(path, json.dumps(sections, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compile the networks of audit_networks.json: right or not, kernels, memory, and times beside other systems in turns.

python benchmarks/audit.py                        # benchmarks/audit.json (`make audit`); goes on where it stopped
python benchmarks/audit.py --no-times             # what is right and what is refused, in a fraction of the time
python benchmarks/audit.py resnet18 BertModel --again --threads 2
python benchmarks/audit.py --above 1.2            # again what takes more than 1.2x of the faster of the others
python benchmarks/render.py audit                 # and from it the tables of docs/audit.md

What is refused, crashes or hangs is an entry with its reason and does not stop the rest. The exit code is 2 if any
network of this call failed or is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from audit_list import TABLE, Network, chosen, networks
from audit_rows import OTHERS, OURS, PLAIN, REFERENCE, is_right, is_undecided, line, ratio_of_faster
from audit_system import NoTimes, ProcessorTime, prepare

from smartmem_tvm.errors import UserError
from smartmem_tvm.json_data import plain
from smartmem_tvm.tools.bench.child import ending
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.measure_systems import Method, measure
from smartmem_tvm.tools.bench.results import Results, rounded
from smartmem_tvm.tools.bench.systems import largest_error
from smartmem_tvm.tools.bench.turns import RunEffort
from smartmem_tvm.tune.host import usable_cores
from smartmem_tvm.whole_file import check_output

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "audit.json"


def main() -> int:
    """Take the networks that are not in the file yet, one after the other; each is written as soon as it is done."""
    args = arguments()
    try:
        check_output(args.output)
        results = Results(args.output)
        wanted = chosen(networks(args.table), args.networks, args.family)
    except UserError as error:
        print(f"audit.py: {error}", file=sys.stderr)
        return UserError.EXIT_CODE
    left = [network for network in wanted if args.again or waits(results.rows.get(network.name), args)]
    bad = 0
    for number, network in enumerate(left, start=1):
        old = {} if args.again else results.rows.get(network.name, {})
        row = audited(network, args, old)
        results.add(rounded(plain(row)))
        bad += "error" in row or not (is_right(row) or is_undecided(row))
        print(f"[{number}/{len(left)}] {network.name}: {line(row)}", flush=True)
    return UserError.EXIT_CODE if bad else 0


def arguments() -> argparse.Namespace:
    """What the command is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="by name (default: all)")
    parser.add_argument("--family", action="append", default=[], help="all networks of a family; may be given again")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="FILE", help="networks, as audit_networks.json")
    parser.add_argument("--no-times", dest="times", action="store_false", help="only what is right, and the counts")
    parser.add_argument("--threads", type=int, default=1, help="of all systems; 0 for all cores (default: 1)")
    parser.add_argument("--budget", type=float, default=2.0, metavar="SECONDS", help="of timed runs of each system")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="for one step of one system")
    parser.add_argument("--failed", action="store_true", help="also take again what failed or is wrong")
    parser.add_argument("--again", action="store_true", help="take all again")
    parser.add_argument("--above", type=float, metavar="RATIO", help="take again what takes longer than the others")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the ONNX files there, and take those that are")
    args = parser.parse_args()
    if args.threads < 0 or args.budget <= 0 or args.timeout <= 0:
        parser.error("--threads is no number below 0, --budget and --timeout are more than 0")
    args.threads = args.threads or usable_cores()
    return args


def waits(row: dict | None, args: argparse.Namespace) -> bool:
    """Whether a network is still to be taken."""
    if row is None:
        return True
    if "error" in row:
        return args.failed
    if args.above is not None and (ratio_of_faster(row, str(args.threads)) or 0) > args.above:
        return True
    return (args.failed and not is_right(row)) or (args.times and str(args.threads) not in row["latency"])


def audited(network: Network, args: argparse.Namespace, old: dict) -> dict:
    """The row of a network; times on other numbers of threads stay those of the old one."""
    row = {"model": network.name, "name": network.name, "family": network.family, "package": network.package}
    row |= {"scale": network.scale, "date": date.today().isoformat(), "machine": machine(usable_cores())}
    with folder(args.keep) as place:
        path = place / f"{network.name}.onnx"
        start = time.perf_counter()
        sentence = "" if path.exists() else exported(network, path, args)
        if sentence:
            return {**row, "stage": "export", "error": sentence}
        row["export_seconds"] = time.perf_counter() - start
        row |= summary(measured(path, args), args)
        if row.get("deviation") is not None and not is_right(row):
            row["reference_deviation"] = deviation_of_reference(path, args)
    if "latency" in row:
        row["latency"] = {**old.get("latency", {}), **row["latency"]}
    return row


@contextlib.contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Where the ONNX file is made: gone afterwards, unless it is to be kept."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="smartmem-audit-") as name:
        yield Path(name)


def exported(network: Network, path: Path, args: argparse.Namespace) -> str:
    """Have the file written by a process of its own; what it said if it could not."""
    partial = path.with_suffix(".part")
    command = [sys.executable, str(HERE / "audit_export.py"), "--table", str(args.table), network.name, str(partial)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        partial.unlink(missing_ok=True)
        return f"The export took more than {args.timeout:.0f} s."
    if done.returncode == 0:
        partial.replace(path)
        return ""
    partial.unlink(missing_ok=True)
    last = done.stderr.strip().splitlines()[-1:] if done.returncode > 0 else [f"The export {ending(done.returncode)}."]
    return last[0][:400] if last else "The export failed."


def measured(path: Path, args: argparse.Namespace) -> dict[str, dict]:
    """Facts of each system, as `smartmem bench` finds them."""
    timer = ProcessorTime if args.threads == 1 else RunEffort
    effort = timer(args.budget) if args.times else NoTimes()
    return run(path, (OURS, *(OTHERS if args.times else (REFERENCE,))), effort, args)


def deviation_of_reference(path: Path, args: argparse.Namespace) -> float | None:
    """How far ONNX Runtime is from itself without its optimizations."""
    return run(path, (PLAIN, REFERENCE), NoTimes(), args)[PLAIN].get("relative_error")


def run(path: Path, names: Sequence[str], effort, args: argparse.Namespace) -> dict[str, dict]:
    """Facts of the named systems on one file."""
    common = {"path": str(path), "shapes": {}, "threads": args.threads, "seed": 0, "options": {}}
    requests = [{**common, "system": name} for name in names]
    return measure(requests, Method(prepare, largest_error, REFERENCE, effort, patience=args.timeout))


def summary(facts: dict[str, dict], args: argparse.Namespace) -> dict:
    """What of the facts goes into a row."""
    ours, reference = facts[OURS], facts.get(REFERENCE, {})
    if "error" in ours:
        return {"stage": "smartmem", "error": ours["error"]}
    row = {name: ours[name] for name in ("kernels", "layout_kernels", "functions", "onnx_nodes", "memory", "seconds")}
    row |= {name: ours[name] for name in ("slow_share", "slow_kernels", "of_roofline") if name in ours}
    row["deviation"] = ours.get("relative_error")
    failed = {name: each["error"] for name, each in facts.items() if "error" in each}
    row |= {"failed": failed} if failed else {}
    row |= {"versions": [each["version"] for each in facts.values() if "version" in each]}
    timed = {name: each["latency_ms"] for name, each in facts.items() if "latency_ms" in each}
    if "error" in reference:
        return {**row, "latency": {}, "stage": REFERENCE, "error": reference["error"]}
    return {**row, "latency": {str(args.threads): timed} if timed else {}}


if __name__ == "__main__":
    sys.exit(main())

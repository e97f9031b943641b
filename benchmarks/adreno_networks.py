#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole networks as each Adreno gets them: scratch accesses, issue time beside the bound, and modelled time.

python benchmarks/adreno_networks.py --jobs 16                        # benchmarks/adreno_networks.json, hours of a core
python benchmarks/adreno_networks.py --only yolov8n half 740          # some of it
python benchmarks/adreno_networks.py --only yolov8n --into new.json --beside benchmarks/adreno_networks.json
python benchmarks/render.py adreno                                    # and from the file a part of docs/adreno.md

Kernels are chosen for each Adreno and compiled by Mesa for it (docs/adreno.md): `smartmem isa --setup` gets Mesa, and
SMARTMEM_MESA names its folder. No phone is asked, and nothing is fetched. Rows that are in the file are not made again,
and results of the compiler are kept, so that an interrupted run goes on where it stopped; --again makes them anew.

The modelled time of a launch is the longer of its issue time, by Mesa's instructions, and its memory time, by the model
of accesses. Where the trips of a loop cannot be read off the code, the roofline's bound stands for the issue time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from smartmem_tvm.tables.suite import SMARTMEM18
from smartmem_tvm.tools.bench.columns import geometric_mean
from smartmem_tvm.tools.bench.results import write

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "adreno_networks.json"
NETWORKS = tuple(entry.file for entry in SMARTMEM18)
OTHERS = ("extra/squeezenet", "extra/mobilenetv2", "extra/vit_s16")
"""Networks that are made only if asked for."""
PRECISIONS = ("float32", "half")
GPUS = (618, 660, 740, 830)
PRODUCTS = ("GpuMatmul", "WindowProduct")  # rules whose inner loops are products
_LARGE = tuple(entry.file for entry in SMARTMEM18 if entry.large)  # gigabytes a process: only a quarter of the jobs
_KEPT = ("rule", "launches", "registers", "waves", "scratch", "arithmetic_share", "issue_seconds", "bound_seconds")


def measured(network: str, precision: str, gpu: int) -> dict:
    """Return the row of a network: its kernels, each with what Mesa and the model of accesses say."""
    import smartmem_tvm
    from smartmem_tvm.analysis.kernel_time import memory_seconds
    from smartmem_tvm.analysis.network_access import network_accesses
    from smartmem_tvm.deploy.textures import staged
    from smartmem_tvm.mesa_folder import mesa_version
    from smartmem_tvm.target import parse_target, target_row
    from smartmem_tvm.tools.isa.compiler import compile_all
    from smartmem_tvm.tools.isa.kernels import kernel_codes
    from smartmem_tvm.tools.isa.network import network_kernels
    from smartmem_tvm.tools.isa.sources import function_of

    start, target = time.perf_counter(), parse_target(f"adreno-{gpu}")
    device, mod = target_row(target), smartmem_tvm.from_onnx(HERE.parent / "models" / f"{network}.onnx")
    made = network_kernels(mod, target, smartmem_tvm.Options(precision=precision))
    codes = kernel_codes(made.sources, compile_all(made.sources, gpu))
    accesses = network_accesses(staged(made.scheduled, target), device)
    moved = {each.name: memory_seconds(each.accesses, device) / each.launches for each in accesses if each.accesses}
    lines = sum(each.accesses.lines for each in accesses if each.accesses)
    kernels, functions = [], set()
    for name, code in codes.items():
        said, function = {**code.as_dict(device), **made.facts[name]}, function_of(name)
        kept = {key: said.get(key) for key in _KEPT}
        refused = {"refused": said["refused"]} if said["refused"] else {}
        by = {"bound_by": said["bound_by"], "loop": bool(said.get("inner_loop"))}
        # Several OpenCL kernels of one function share its accesses and its bound: the first of them has both.
        first = function not in functions
        own = {} if first else {"bound_seconds": None}
        functions.add(function)
        kernels.append({"kernel": name, **kept, **by, "memory_seconds": moved.get(function) if first else 0.0} | own)
        kernels[-1].update(refused)
    facts = {"mesa": mesa_version(), "date": datetime.date.today().isoformat(), "seconds": time.perf_counter() - start}
    bytes_ = sum(each.accesses.l2_misses for each in accesses if each.accesses) * device.sector_bytes
    return {"network": network, "precision": precision, "gpu": gpu, **facts, "lines": lines, "bytes": bytes_} | {
        "kernels": kernels
    }


def modelled(kernel: Mapping) -> float:
    """Return the seconds of a launch: the longer of issue and memory."""
    issue = kernel["issue_seconds"]
    return max(kernel["bound_seconds"] or 0.0 if issue is None else issue, kernel["memory_seconds"] or 0.0)


def summary(row: Mapping) -> dict:
    """Return the figures of a row of the table.

    Returns
    -------
    dict
        ``kernels``, ``refused``, ``scratch`` accesses, ``unknown`` issue times; ``mean`` and ``worst`` of issue over
        bound for kernels bound by arithmetic, None without any; ``share`` of arithmetic in inner loops of products;
        ``seconds`` of all launches; ``lines`` and ``bytes``.
    """
    made = [each for each in row["kernels"] if "refused" not in each]
    over = [
        each["issue_seconds"] / each["bound_seconds"]
        for each in made
        if each["bound_by"] == "arithmetic" and each["issue_seconds"] and each["bound_seconds"]
    ]
    loops = [each["arithmetic_share"] for each in made if each["rule"] in PRODUCTS and each["loop"]]
    return {
        "kernels": len(made),
        "refused": len(row["kernels"]) - len(made),
        "scratch": sum(each["scratch"] for each in made),
        "unknown": sum(each["issue_seconds"] is None for each in made),
        "mean": geometric_mean(over) if over else None,
        "worst": max(over, default=None),
        "above": sum(each > 2 for each in over),
        "share": sum(loops) / len(loops) if loops else None,
        "seconds": math.fsum(each["launches"] * modelled(each) for each in made),
        "lines": row["lines"],
        "bytes": row["bytes"],
    }


def read(path: Path) -> dict[str, dict]:
    """Return the rows of a file by their names; none if there is no file."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}


def save(path: Path, rows: Mapping[str, dict]) -> None:
    """Write the file, a kernel to a line."""
    parts = []
    for name in sorted(rows):
        facts = {key: value for key, value in rows[name].items() if key != "kernels"}
        lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in rows[name]["kernels"])
        parts.append(f'{json.dumps(name)}: {json.dumps(facts)[:-1]}, "kernels": [\n{lines}\n]}}')
    write(path, '{"rows": {\n' + ",\n".join(parts) + "\n}}\n")


def beside(old: Mapping[str, dict], new: Mapping[str, dict]) -> Iterator[str]:
    """Yield a line for each row that two files have: figures before and after."""
    for name in sorted({*old} & {*new}):
        before, after = summary(old[name]), summary(new[name])
        ms = " -> ".join(f"{each['seconds'] * 1e3:.3f}" for each in (before, after))
        mb = " -> ".join(f"{each['bytes'] / 1e6:.1f}" for each in (before, after))
        scratch = f"{before['scratch']} -> {after['scratch']}"
        yield f"{name}: {ms} ms ({after['seconds'] / before['seconds']:.3f}x), {mb} MB, scratch {scratch}"


def _wanted(only: Sequence[str]) -> list[tuple[str, str, int]]:
    def asked(names: Sequence, more: Sequence = ()) -> list:
        return [each for each in (*names, *more) if str(each).rpartition("/")[2] in only] or list(names)

    # The large ones first: they take longest.
    networks = sorted(asked(NETWORKS, OTHERS), key=lambda each: each not in _LARGE)
    return [(n, p, gpu) for n in networks for gpu in asked(GPUS) for p in asked(PRECISIONS)]


def _in_process(row: tuple[str, str, int], threads: int) -> dict | None:
    """Make a row in a process of its own; None, with its last line of output said, if that fails."""
    own = {name: str(threads) for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    command = [sys.executable, __file__, "--row", *map(str, row)]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{_name(row)} failed: {(done.stderr.strip() or '-').splitlines()[-1]}", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _name(row: tuple[str, str, int]) -> str:
    return ", ".join(map(str, row))


def measure(only: Sequence[str], path: Path, jobs: int, again: bool) -> bool:
    """Make the rows that are asked for and missing, and write the file after each; return whether all were made."""
    rows = read(path)
    left = [row for row in _wanted(only) if again or _name(row) not in rows]
    threads, failed = max(1, (os.cpu_count() or 1) // jobs), False
    few = jobs // 4 if any(row[0] in _LARGE for row in left) else 0
    with ThreadPoolExecutor(jobs - few) as most, ThreadPoolExecutor(few or 1) as large:
        waiting = {(large if few and row[0] in _LARGE else most).submit(_in_process, row, threads): row for row in left}
        for done in as_completed(waiting):
            name, made = _name(waiting[done]), done.result()
            failed |= made is None
            if made is not None:
                rows[name] = made
                save(path, rows)
                print(f"{name}: {len(made['kernels'])} kernels, {made['seconds']:.0f} s", file=sys.stderr, flush=True)
    return not failed


def main() -> int:
    """Make rows, or compare two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some networks, precisions, Adrenos")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time (default: 1)")
    parser.add_argument("--again", action="store_true", help="make rows anew that the file has")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="then: compare with the rows of another file")
    parser.add_argument("--row", nargs=3, metavar=("NETWORK", "PRECISION", "GPU"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measured(args.row[0], args.row[1], int(args.row[2]))))
        return 0
    complete = measure(args.only, args.into, args.jobs, args.again)
    if args.beside:
        print("\n".join(beside(read(args.beside), read(args.into))))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

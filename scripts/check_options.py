#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare whole networks, each option of the pipeline off alone or in pairs, with ONNX Runtime.

    python scripts/check_options.py --target cuda --json out.jsonl            # the demo networks, each option off alone
    python scripts/check_options.py --target opencl-texture --pairs --json out.jsonl models/swin_t.onnx

Needs the installed package and ONNX Runtime, no checkout of tests. Each case runs in a process of its own, so that a
crash or a sticky error of a GPU is one case's; one line a case on stdout, and one in the file of ``--json``, which an
interrupted run goes on from. The exit status is 1 if a case fails. On a GPU ``schedule`` is never off: kernels need it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "models"
# Beside the demo networks: with sorts, gathers and booleans in memory.
MORE_NETWORKS = ("biformer_s",)
TARGETS = ("llvm", "opencl", "opencl-texture", "cuda")
# Options that every target has, and those that one kind has besides.
SWITCHES = ("rewrite", "merge_projections", "eliminate", "simplify", "fuse", "fuse_attention", "arena")
MORE = {"llvm": ("schedule",), "opencl": (), "opencl-texture": ("textures", "layout"), "cuda": ("cuda_graph",)}
TOLERANCE = 1e-3  # of the largest magnitude of an output; rounding alone is 1e-6 to 1e-4


def option_sets(target: str, pairs: bool) -> list[tuple[str, ...]]:
    """What is off in each case: nothing, each option, and on request each two of them."""
    switches = (*SWITCHES, *MORE[target])
    return [(), *((each,) for each in switches), *(combinations(switches, 2) if pairs else ())]


def run_case(path: str, target: str, off: tuple[str, ...]) -> dict:
    """Compile and run one network, in this process."""
    import smartmem_tvm
    from smartmem_tvm.comparison import compare
    from smartmem_tvm.frontend import check_inputs, from_onnx, read_model, run_onnxruntime
    from smartmem_tvm.frontend.inputs import id_limits, random_inputs
    from smartmem_tvm.target import parse_target

    model = read_model(path, {})
    arrays = check_inputs(model.inputs, random_inputs(model.inputs, id_limits(model.proto), 0))
    expected = run_onnxruntime(model, dict(zip(model.inputs, arrays)))
    start = time.perf_counter()
    options = smartmem_tvm.Options(**dict.fromkeys(off, False))
    compiled = smartmem_tvm.compile(from_onnx(model), parse_target(target), options)
    seconds = time.perf_counter() - start
    # Twice: what a first run leaves behind, a recorded graph say, the second one must not trip over.
    worst, ok = 0.0, True
    for found in (compiled.run(*arrays), compiled.run(*arrays)):
        errors = [compare(*pair, TOLERANCE, 0.0) for pair in zip(found, expected, strict=True)]
        worst, ok = max(worst, *(each["max_rel_err"] for each in errors)), ok and all(each["ok"] for each in errors)
    return {"ok": ok, "error": worst, "compile_s": round(seconds, 1), "kernels": len(compiled.rules)}


def in_process(path: str, target: str, off: tuple[str, ...], limit: float) -> dict:
    """The same in a process of its own; what ends it is the result."""
    command = [sys.executable, __file__, path, "--target", target, "--case", ",".join(off)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"ok": False, "reason": f"not finished in {limit:g} s"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
    return {"ok": False, "reason": " | ".join(last)[-1000:] or f"exit status {done.returncode}"}


def line_of(case: dict) -> str:
    """A case in one line."""
    off = " ".join(f"no-{name}" for name in case["off"]) or "default"
    what = f"error {case['error']:.1e}, {case['compile_s']} s" if "error" in case else case["reason"]
    return f"{'ok    ' if case['ok'] else 'FAILED'} {case['model']} {case['target']} {off}: {what}"


def demo_networks() -> list[str]:
    """Files of the demo networks and `MORE_NETWORKS`."""
    from smartmem_tvm.tables.suite import SUITES

    return [str(MODELS / f"{name}.onnx") for name in (*(entry.file for entry in SUITES["gpu"]), *MORE_NETWORKS)]


def known_cases(file: Path | None) -> dict[tuple, dict]:
    """The cases in the file of an earlier run that passed; the others are tried again."""
    if file is None or not file.exists():
        return {}
    cases = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    return {(case["model"], case["target"], tuple(case["off"])): case for case in cases if case["ok"]}


def main() -> int:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help="ONNX files (default: the demo networks in models/)")
    parser.add_argument("--target", choices=TARGETS, default="llvm")
    parser.add_argument("--pairs", action="store_true", help="each two options off, too")
    parser.add_argument("--json", type=Path, help="one line a case is added to this file; those that passed are known")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of a case (default: %(default)s)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(run_case(args.models[0], args.target, tuple(filter(None, args.case.split(","))))))
        return 0
    known, failed = known_cases(args.json), 0
    for path in args.models or demo_networks():
        for off in option_sets(args.target, args.pairs):
            place = {"model": Path(path).stem, "target": args.target, "off": list(off)}
            if (place["model"], place["target"], off) in known:
                continue
            case = {**place, **in_process(path, args.target, off, args.timeout)}
            failed += not case["ok"]
            print(line_of(case), flush=True)
            if args.json is not None:
                with args.json.open("a") as out:
                    out.write(json.dumps(case) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

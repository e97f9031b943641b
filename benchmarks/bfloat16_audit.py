# SPDX-License-Identifier: Apache-2.0
"""Networks of the audit's table in bfloat16 on a CPU that multiplies such numbers, beside float32 and OpenVINO.

    python benchmarks/bfloat16_audit.py                     a sample; goes on where it stopped
    python benchmarks/bfloat16_audit.py resnet50 dla34

Each network is measured in a process of its own, on one thread: rounds in turns for some seconds, medians of processor
time. Weights are random. Errors are against torch in float64, relative to the largest output, with torch's own bfloat16
beside them. OpenVINO takes bfloat16 by itself where a CPU has it. The results go to bfloat16_audit.json;
`render.py precision` writes the page.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from audit_list import networks
from gpu_audit import Running, as_type, attempt, largest_error

from smartmem_tvm.errors import UserError
from smartmem_tvm.whole_file import whole

RESULTS = Path(__file__).resolve().parent / "bfloat16_audit.json"
PRECISIONS = ("float32", "bfloat16")
_SEED, _SAMPLE = 11, 60
_LEAST_ROUNDS = 5


def main() -> int:
    """Measure the networks that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=sample(), help="by name in audit_networks.json")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for one network")
    parser.add_argument("--budget", type=float, default=6, metavar="SECONDS", help="of rounds in turns")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args)))
        return 0
    absent = [name for name in args.networks if name not in networks()]
    if absent:
        print(f"bfloat16_audit.py: {UserError(f'The audit has no network {absent[0]!r}.')}", file=sys.stderr)
        return UserError.EXIT_CODE
    known = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"networks": {}}
    for name in args.networks:
        if name in known["networks"]:
            continue
        running = Running.of([sys.executable, __file__, "--one", name, "--budget", str(args.budget)])
        while not running.ended(args.timeout):
            time.sleep(0.2)
        known["networks"][name] = running.row()
        with whole(args.output) as path:
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(known["networks"][name]), flush=True)
    return 0


def sample() -> list[str]:
    """Networks drawn at random, always the same ones."""
    return random.Random(_SEED).sample(list(networks()), _SAMPLE)


def measure(name: str, args: argparse.Namespace) -> dict:
    """One network: milliseconds of each system, and errors."""
    import torch
    import tvm
    from audit_export import export, made

    import smartmem_tvm as sm
    from smartmem_tvm.target import host_target

    torch.set_num_threads(1)
    module, given = made(networks()[name], 1)
    row: dict = {"errors": {}, "failed": {}, "seconds": {}}
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(*as_type(given, torch.float64))
        error = largest_error([each.numpy() for each in exact])
        with attempt(row, "torch bfloat16", args.timeout):
            narrow = copy.deepcopy(module).bfloat16()(*as_type(given, torch.bfloat16))
            row["errors"]["torch bfloat16"] = error([each.float().numpy() for each in narrow])
    arrays, runs = [each.numpy() for each in given], {}
    one_core = tvm.target.Target({**host_target().export(), "num-cores": 1})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.onnx")
        export(networks()[name], path, 1)
        for precision in PRECISIONS:
            compiled = sm.compile(sm.from_onnx(path), one_core, sm.Options(precision=precision))
            row["errors"][f"ours {precision}"] = error(compiled.run(*arrays))
            runs[f"ours {precision}"] = lambda it=compiled: it.run(*arrays)
        with attempt(row, "OpenVINO default", args.timeout):
            runs["OpenVINO default"] = openvino(path, arrays)
    row["milliseconds"] = in_turns(runs, args.budget)
    return {**row, "date": date.today().isoformat()}


def openvino(path: Path, arrays: list) -> Callable:
    """A run of OpenVINO on one thread, in the precision that it chooses."""
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": 1})
    request = compiled.create_infer_request()
    request.infer(arrays)
    return lambda: request.infer(arrays)


def in_turns(runs: dict[str, Callable], budget: float) -> dict[str, float]:
    """Medians of processor time, in milliseconds; each run follows one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.monotonic() + budget
    while time.monotonic() < end or len(next(iter(times.values()))) < _LEAST_ROUNDS:
        for name, run in runs.items():
            run()
            start = time.process_time()
            run()
            times[name].append((time.process_time() - start) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__":
    sys.exit(main())

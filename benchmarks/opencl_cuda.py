# SPDX-License-Identifier: Apache-2.0
"""Networks through OpenCL and through CUDA on one GPU, the same kernels in turns.

    python benchmarks/opencl_cuda.py --jobs 8      # benchmarks/opencl_cuda.json; goes on where it stopped

All 24 networks, in buffers and in textures, beside CUDA with and without graphs. An entry of other native code than
today's, or of a network that failed, is measured anew. Without CUDA: ``--systems opencl opencl-texture``.

Weights are random, and the networks are timm's; float32, one picture. Errors are against torch in float64, on the same
weights and inputs, relative to the largest output. Networks are compiled side by side and timed one at a time. "host"
is when the call returns, at which launches are handed over, and not when they are done.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

from audit_list import Input, Network
from gpu_audit import Running, Turn, attempt, largest_error

from smartmem_tvm.whole_file import whole

NETWORKS = (
    *("ghostnetv3_100", "mixnet_m", "crossvit_15_240", "gcresnext26ts", "deit_small_patch16_224", "repvit_m0_9"),
    *("efficientformer_l1", "mobilevit_s", "edgenext_small", "fastvit_t8", "xcit_nano_12_p16_224", "tiny_vit_5m_224"),
    *("efficientvit_b0", "inception_next_atto", "visformer_tiny", "poolformerv2_s12", "swiftformer_xs", "davit_tiny"),
    *("focalnet_tiny_srf", "mobilenetv4_conv_medium", "resnet26t", "res2net50_14w_8s", "rexnet_130", "cspresnet50"),
)
# Name -> target and options.
SYSTEMS: dict[str, tuple[str, dict]] = {
    "cuda graph": ("cuda", {}),
    "cuda": ("cuda", {"cuda_graph": False}),
    "opencl": ("opencl", {}),
    "opencl-texture": ("opencl-texture", {}),
    "opencl, no arena": ("opencl", {"arena": False}),
    "opencl, an argument each": ("opencl", {}),
    "opencl, one by one": ("opencl", {}),
}
# What the runtime is told while a system of a name runs.
VARIABLES = {
    "opencl, an argument each": {"SMARTMEM_OPENCL_SHARED_ARGUMENTS": "0"},
    "opencl, one by one": {"SMARTMEM_OPENCL_REPLAY": "launches"},
}
COMPARED = tuple(SYSTEMS)[:4]
_ROUNDS, _RUNS = 15, 20
HERE = Path(__file__).resolve().parent


def main() -> int:
    """Measure the networks that are not in the file yet, some of them compiled at the same time."""
    args = arguments()
    known = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"networks": {}}
    waiting = [name for name in args.networks if not measured(known["networks"].get(name, {}), args.systems)]
    running: dict[str, Running] = {}
    while waiting or running:
        while waiting and len(running) < args.jobs:
            name = waiting.pop(0)
            command = [sys.executable, __file__, "--one", name, "-o", str(args.output), "--systems", *args.systems]
            running[name] = Running.of([*command, "--limit", str(args.limit)])
        time.sleep(0.2)
        for name in [name for name, each in running.items() if each.ended(args.timeout)]:
            known["networks"][name] = row = running.pop(name).row()
            with whole(args.output) as path:
                path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            print(name, json.dumps(row), flush=True)
    return 0


def measured(row: dict, systems: list[str]) -> bool:
    """Whether an entry holds all systems, of the native code that is here."""
    return row.get("code") == code() and all(each in row["milliseconds"] for each in systems)


def code() -> str:
    """What tells native code from other native code."""
    files = sorted(path for path in (HERE.parent / "native").iterdir() if path.suffix in (".cc", ".h"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


@contextlib.contextmanager
def told(system: str) -> Iterator[None]:
    """With the variables of a system."""
    variables = VARIABLES.get(system, {})
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name)


def arguments() -> argparse.Namespace:
    """What the command is given; with ``--one`` this process measures one network and ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help="by their names in timm")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "opencl_cuda.json", metavar="FILE")
    parser.add_argument("--systems", nargs="*", default=list(COMPARED), choices=list(SYSTEMS), metavar="SYSTEM")
    parser.add_argument("--jobs", type=int, default=1, help="networks that are compiled at the same time")
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help="for one network, with its turn")
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help="for one system to compile a network")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args)))
        sys.exit(0)
    return args


def measure(name: str, args: argparse.Namespace) -> dict:
    """One network: milliseconds of each system, in all and of the host alone, errors, launches."""
    import torch
    from audit_export import export, made

    torch.set_num_threads(2)
    network = Network(name, "", "timm", name, {"x": Input((1, *size_of(name)))})
    module, given = made(network)
    on_gpu = torch.cuda.is_available()
    with torch.no_grad():
        exact = module.double().cuda() if on_gpu else module.double()
        expected = exact(*(each.double().to("cuda" if on_gpu else "cpu") for each in given))
        error = largest_error([each.cpu().numpy() for each in expected])
        del exact, expected
    row: dict = {"milliseconds": {}, "host": {}, "launches": {}, "errors": {}, "seconds": {}, "failed": {}}
    runs: dict[str, Callable] = {}
    turn = Turn(args.output)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.onnx")
        export(network, path)
        for system in args.systems:
            with attempt(row, system, args.limit), told(system):
                runs[system] = compiled(path, [each.numpy() for each in given], system, row, error)
    turn.take()
    for system, (in_all, host) in in_turns(runs).items():
        row["milliseconds"][system], row["host"][system] = in_all, host
    device = torch.cuda.get_device_name() if on_gpu else ""
    facts = {"device": device, "driver": driver(), "replay": replay(), "code": code()}
    return {**row, **facts, "date": date.today().isoformat()}


def size_of(name: str) -> tuple[int, ...]:
    """Channels, height and width of the picture that a network of timm's is published for."""
    from smartmem_tvm.tools.timm_networks import import_timm

    return tuple(import_timm().get_pretrained_cfg(name).input_size)


def driver() -> str:
    """What the first OpenCL device says of its driver."""
    from smartmem_tvm.runtime import opencl

    return " ".join((opencl.devices()[0].platform, opencl.devices()[0].driver))


def replay() -> str:
    """How the first OpenCL device is given recorded launches again."""
    from smartmem_tvm.runtime import opencl

    return opencl.devices()[0].replay


def compiled(path: Path, arrays: list, system: str, row: dict, error: Callable) -> Callable[[], tuple[float, float]]:
    """Compile for a system; a call of it on inputs that are on the device, milliseconds in all and of the host."""
    import smartmem_tvm as sm
    from smartmem_tvm.graph_report import graph_cost
    from smartmem_tvm.target import parse_target

    target, options = SYSTEMS[system]
    found = sm.compile(sm.from_onnx(path), parse_target(target), sm.Options(**options))
    row["errors"][system] = error(found.run(*arrays))
    row["launches"][system] = graph_cost(found.graph).kernels
    machine = found.vm
    function, tensors = machine["main"], machine.tensors(arrays)

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        function(*tensors)
        host = time.perf_counter()
        machine.device.sync()
        return (time.perf_counter() - start) * 1e3, (host - start) * 1e3

    return run


def in_turns(runs: dict[str, Callable]) -> dict[str, tuple[float, float]]:
    """Medians in milliseconds, in all and of the host."""
    times: dict[str, list] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            with told(name):
                run()
                times[name] += [run() for _ in range(_RUNS)]
    return {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in times.items()}


if __name__ == "__main__":
    sys.exit(main())

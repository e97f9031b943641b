# SPDX-License-Identifier: Apache-2.0
"""Networks of the audit's table on a CUDA GPU, beside torch.compile: ours and torch's in turns, in each precision.

    python benchmarks/gpu_audit.py      # benchmarks/gpu_audit.json; goes on where it stopped
    python benchmarks/gpu_audit.py --jobs 6 --batch 8 32 --ours half --torch half:max-autotune -- resnet50 BertModel
    python benchmarks/gpu_audit.py --all --jobs 9 --ours float32 --torch float32:reduce-overhead --limit 170

Weights are random. Errors are against torch in float64, on the same weights and inputs, relative to the largest output.
Networks are compiled side by side, and timed one at a time: none is timed while others compile. The kernels that
torch's max-autotune tries are timed one at a time, too, over all networks. What fails or takes too long is an entry
with its reason; so is a mode of torch's alone.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO

from audit_list import networks

from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.bench.child import ending
from smartmem_tvm.whole_file import whole

NETWORKS = (
    *("swin_tiny_patch4_window7_224", "beit_base_patch16_224", "gcvit_xxtiny", "poolformer_s12", "pvt_v2_b1"),
    *("twins_svt_small", "densenet121", "swinv2_tiny_window8_256", "resnet50", "resnext50_32x4d", "convnext_tiny"),
    *("vit_base_patch16_224", "BertModel", "SegformerForSemanticSegmentation", "efficientnet_b0", "levit_128s"),
    *("mobilenetv3_large_100", "cait_xxs24_224", "coat_lite_tiny", "regnety_008", "Dinov2Model", "Wav2Vec2Model"),
    *("CLIPModel", "GPT2LMHeadModel", "mixer_s32_224", "maxvit_rmlp_pico_rw_256"),
)
OURS, TORCH = ("float32", "half"), ("float32:reduce-overhead", "half:reduce-overhead", "half:max-autotune")
TYPES = {"half": "float16", "bfloat16": "bfloat16", "float32": "float32", "tf32": "float32"}
_ROUNDS, _RUNS = 15, 20
HERE = Path(__file__).resolve().parent


def main() -> int:
    """Measure the networks that are not in the file yet, some of them compiled at the same time."""
    args = arguments()
    try:
        known = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"networks": {}}
        wanted = [(name, batch) for batch in args.batch for name in args.networks]
        waiting = [each for each in wanted if "{}@{}".format(*each) not in known["networks"]]
        absent = [name for name, _ in waiting if name not in networks()]
        if absent:
            raise UserError(f"The audit has no network '{absent[0]}': name one of benchmarks/audit_networks.json.")
    except (UserError, ValueError) as error:
        print(f"gpu_audit.py: {error}", file=sys.stderr)
        return UserError.EXIT_CODE
    running: dict[str, Running] = {}
    while waiting or running:
        while waiting and len(running) < args.jobs:
            name, batch = waiting.pop(0)
            running[f"{name}@{batch}"] = started(args, name, batch)
        time.sleep(0.2)
        for key in [key for key, each in running.items() if each.ended(args.timeout)]:
            row = running.pop(key).row()
            known["networks"][key] = row
            with whole(args.output) as path:
                path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            print(key, json.dumps(row), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    """What the command is given; with ``--one`` this process measures one network and ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help="by name in audit_networks.json")
    parser.add_argument("--all", action="store_true", help="all networks of audit_networks.json")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "gpu_audit.json", metavar="FILE")
    parser.add_argument("--batch", type=int, nargs="*", default=[1])
    parser.add_argument("--ours", nargs="*", default=list(OURS), metavar="PRECISION[:LAYOUT]")
    parser.add_argument("--torch", nargs="*", default=list(TORCH), metavar="PRECISION:MODE")
    parser.add_argument("--jobs", type=int, default=1, help="networks that are compiled at the same time")
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help="for one network, with its turn")
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help="for one system to compile a network")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.all:
        args.networks = list(networks())
    if args.one:
        print(json.dumps(measure(args.one, args.batch[0], args)))
        sys.exit(0)
    return args


@dataclass
class Running:
    """A process of its own for a network.

    What it says goes to files: a pipe would not be read meanwhile, and a search that says more than a pipe holds would
    wait for good.
    """

    process: subprocess.Popen
    said: tuple[IO[str], IO[str]]
    start: float

    @classmethod
    def of(cls, command: list[str]) -> Running:
        """The process of a command, and the time."""
        said = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        return cls(subprocess.Popen(command, stdout=said[0], stderr=said[1]), said, time.monotonic())

    def ended(self, timeout: float) -> bool:
        """Whether it is done; it is stopped when its time is over."""
        if self.process.poll() is None and time.monotonic() - self.start > timeout:
            self.process.kill()
            self.process.wait()
        return self.process.poll() is not None

    def row(self) -> dict:
        """What it found, or why not."""
        out, err = map(_lines, self.said)
        if self.process.returncode == 0 and out:
            return json.loads(out[-1])
        if self.process.returncode < 0:
            return {"error": f"It {ending(self.process.returncode)}: it crashed, or took longer than --timeout."}
        return {"error": (err[-1:] or ["It said nothing."])[0][:300]}


def _lines(said: IO[str]) -> list[str]:
    with said:
        said.seek(0)
        return said.read().strip().splitlines()


def started(args: argparse.Namespace, name: str, batch: int) -> Running:
    """A process for a network."""
    command = [sys.executable, __file__, "--one", name, "--batch", str(batch), "-o", str(args.output)]
    return Running.of([*command, "--limit", str(args.limit), "--ours", *args.ours, "--torch", *args.torch])


def measure(name: str, batch: int, args: argparse.Namespace) -> dict:
    """One network: milliseconds of each system (medians of rounds in turns), errors, seconds of compiling."""
    import torch
    from audit_export import export, made

    torch.set_num_threads(2)
    network = networks()[name]
    module, given = made(network, batch)
    with torch.no_grad():
        exact = copy.deepcopy(module).double().cuda()
        expected = exact(*(each.cuda() for each in as_type(given, torch.float64)))
        error = largest_error([each.cpu().numpy() for each in expected])
        del exact, expected
    row: dict = {"seconds": {}, "errors": {}, "milliseconds": {}, "failed": {}}
    runs: dict[str, Callable] = {}
    turn = Turn(args.output)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.onnx")
        if args.ours:
            export(network, path, batch)
        for system in args.ours:
            with attempt(row, f"ours {system}", args.limit):
                runs[f"ours {system}"] = ours(path, given, system, row, error)
    tried = os.open(f"{args.output}.tried", os.O_CREAT | os.O_RDWR)
    for system in args.torch:
        with attempt(row, f"torch {system}", args.limit), torch.no_grad(), tried_alone(tried):
            runs[f"torch {system}"] = theirs(module, given, system, row, error)
    turn.take()
    with torch.no_grad():
        row["milliseconds"] = in_turns(runs)
    return {**row, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat()}


class Turn:
    """Who compiles, beside others, and who is timed, alone: processes that write into one file."""

    def __init__(self, output: Path):
        # All who wait for their turn hold the door together, so that none begins to compile meanwhile.
        self._lock, self._door = (os.open(f"{output}.{each}", os.O_CREAT | os.O_RDWR) for each in ("lock", "door"))
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)

    def take(self) -> None:
        """Wait until none compiles, and keep it so until this process ends."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        fcntl.flock(self._door, fcntl.LOCK_SH)
        fcntl.flock(self._lock, fcntl.LOCK_EX)


class OutOfTime(BaseException):
    """No ``Exception``: torch's search takes one for a kernel that failed, and goes on."""


@contextlib.contextmanager
def attempt(row: dict, name: str, limit: int) -> Iterator[None]:
    """A system that fails, or takes too long, is an entry of the row, and takes its seconds."""

    def stop(*_):
        raise OutOfTime(f"It took longer than {limit} seconds.")

    start = time.perf_counter()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        yield
        row["seconds"][name] = time.perf_counter() - start
    except (Exception, OutOfTime) as error:  # of many kinds
        row["failed"][name] = " ".join(str(error).split())[:300]
    finally:
        signal.alarm(0)


def as_type(given, dtype) -> tuple:
    """Tensors of floats in another type; others as they are."""
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in given)


def largest_error(expected: list) -> Callable:
    """How far arrays are from those of float64, relative to the largest number of each."""
    import numpy as np

    def error(found) -> float:
        pairs = zip(found, expected, strict=True)
        return max(float(np.abs(a.astype("float64") - b).max() / (np.abs(b).max() or 1.0)) for a, b in pairs)

    return error


def ours(path: Path, given, system: str, row: dict, error: Callable) -> Callable:
    """Compile for CUDA; a call of it on inputs that are on the device."""
    import smartmem_tvm as sm
    from smartmem_tvm.tools.bench.turns import inference

    precision, _, layout = system.partition(":")
    compiled = sm.compile(sm.from_onnx(path), "cuda", sm.Options(precision=precision, layout=layout or True))
    arrays = [each.numpy() for each in given]
    row["errors"][f"ours {system}"] = error(compiled.run(*arrays))
    return inference(compiled.vm, arrays)


def theirs(module, given, system: str, row: dict, error: Callable) -> Callable:
    """torch.compile in a mode; a call of it on inputs that are on the device."""
    import torch

    precision, _, mode = system.partition(":")
    dtype = getattr(torch, TYPES[precision])
    torch._dynamo.reset()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    placed = copy.deepcopy(module).to(dtype).cuda()
    arrays = tuple(each.cuda() for each in as_type(given, dtype))
    row["errors"][f"torch {precision}"] = error([each.float().cpu().numpy() for each in placed(*arrays)])
    compiled = torch.compile(placed, mode=mode, dynamic=False)
    for _ in range(3):
        compiled(*arrays)

    def run():
        compiled(*arrays)
        torch.cuda.synchronize()

    return run


@contextlib.contextmanager
def tried_alone(lock: int) -> Iterator[None]:
    """Have torch's search time its kernels while no other process that shares the lock, a file, does so."""
    from torch._inductor.runtime.benchmarking import benchmarker

    timed = benchmarker.benchmark_gpu
    benchmarker.benchmark_gpu = alone(timed, lock)
    try:
        yield
    finally:
        benchmarker.benchmark_gpu = timed


def alone(timed: Callable, lock: int) -> Callable:
    """What times a kernel, under a lock; the kernel's first call, which compiles it, is before that."""

    def in_turn(kernel: Callable, *args, **options):
        kernel()
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return timed(kernel, *args, **options)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    return in_turn


def in_turns(runs: dict[str, Callable]) -> dict[str, float]:
    """Medians in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            run()
            for _ in range(_RUNS):
                start = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Networks of timm in half precision on a CUDA GPU: ours in float32 and in half, torch's best modes in half, in turns.

    python benchmarks/half_speed.py --into benchmarks/half_speed.json
    python benchmarks/half_speed.py --into FILE --jobs 6 --batch 8 --networks swin_tiny_patch4_window7_224 resnet50

Weights are random. Errors are against torch in float64 on the same weights and input, relative to the largest output.
A network that is in the file already is not measured again.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NETWORKS = (
    "swin_tiny_patch4_window7_224",
    "vit_base_patch16_224",
    "convnext_tiny",
    "resnet50",
    "resnext50_32x4d",
    "regnety_032",
    "efficientvit_b3",
    "beit_base_patch16_224",
    "gcvit_xxtiny",
    "poolformer_s12",
    "pvt_v2_b1",
    "twins_svt_small",
    "densenet121",
    "swinv2_tiny_window8_256",
    "deit_small_patch16_224",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "mixer_b16_224",
    "cait_xxs24_224",
    "coat_tiny",
    "levit_128",
    "maxvit_tiny_tf_224",
)
MODES = ("reduce-overhead", "max-autotune")
_ROUNDS, _RUNS = 15, 20


def main() -> int:
    """Measure the networks that are not in the file yet, some of them compiled at the same time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="the results, a JSON file that is added to")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), help="names of timm's")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--modes", nargs="*", default=list(MODES), help="torch.compile's; none: only ours")
    parser.add_argument("--jobs", type=int, default=1, help="networks that are compiled at the same time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one network")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.batch, args.modes, args.into)))
        return 0
    known = json.loads(args.into.read_text()) if args.into.exists() else {"networks": {}}
    waiting = [name for name in args.networks if f"{name}@{args.batch}" not in known["networks"]]
    running: dict[str, tuple[subprocess.Popen, float]] = {}
    while waiting or running:
        while waiting and len(running) < args.jobs:
            name = waiting.pop(0)
            running[name] = _started(args, name)
        time.sleep(0.2)
        for name in [name for name, (process, _) in running.items() if _ended(process, args.timeout, running[name][1])]:
            process, _ = running.pop(name)
            row = _row(process, name)
            known["networks"][f"{name}@{args.batch}"] = row
            _write(args.into, known)
            print(name, json.dumps(row), flush=True)
    return 0


def _started(args, name: str) -> tuple[subprocess.Popen, float]:
    command = [sys.executable, __file__, "--one", name, "--batch", str(args.batch), "--into", str(args.into)]
    command += ["--modes", *args.modes]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), time.monotonic()


def _ended(process: subprocess.Popen, timeout: float, start: float) -> bool:
    if process.poll() is not None:
        return True
    if time.monotonic() - start > timeout:
        process.kill()
        return True
    return False


def _row(process: subprocess.Popen, name: str) -> dict:
    out, err = process.communicate()
    lines = out.strip().splitlines()
    if process.returncode == 0 and lines:
        return json.loads(lines[-1])
    last = err.strip().splitlines()[-1:] or ["stopped: it took too long"]
    return {"error": last[0][:300]}


def _write(path: Path, results: dict) -> None:
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.replace(path)


def measure(name: str, batch: int, modes: list[str], into: Path) -> dict:
    """One network: milliseconds of each system (medians of rounds in turns), errors, seconds of compiling."""
    import numpy as np
    import torch

    from smartmem_tvm.timm_networks import import_timm

    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = import_timm().create_model(name, pretrained=False).eval().requires_grad_(False)
    size = model.pretrained_cfg["input_size"]
    image = torch.randn(batch, *size)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(image.double()).numpy()
    row: dict = {"seconds": {}, "errors": {}, "milliseconds": {}}

    def error(output) -> float:
        return float(np.abs(output.astype("float64") - expected).max() / np.abs(expected).max())

    runs = {}
    # Held until the process ends: nobody is timed while others compile.
    lock = os.open(f"{into}.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    for precision in ("float32", "half"):
        start = time.perf_counter()
        compiled = _compiled(model, image, precision)
        row["seconds"][precision] = time.perf_counter() - start
        row["errors"][precision] = error(compiled.run(image.numpy())[0])
        runs[precision] = _ours(compiled, image.numpy())
    half = copy.deepcopy(model).half().cuda()
    given = image.half().cuda()
    with torch.no_grad():
        row["errors"]["torch half"] = error(half(given).float().cpu().numpy())
    for mode in modes:
        torch._dynamo.reset()
        start = time.perf_counter()
        run = torch.compile(half, mode=mode, dynamic=False)
        with torch.no_grad():
            for _ in range(3):
                run(given)
        row["seconds"][mode] = time.perf_counter() - start
        runs[mode] = lambda run=run: run(given)
    fcntl.flock(lock, fcntl.LOCK_UN)
    fcntl.flock(lock, fcntl.LOCK_EX)
    row["milliseconds"] = _in_turns(runs, torch)
    row["device"] = torch.cuda.get_device_name()
    row["torch"] = torch.__version__
    return row


def _compiled(model, image, precision: str):
    import torch

    import smartmem_tvm as sm

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(model, (image,), path, opset_version=17, dynamo=False)
        mod = sm.from_onnx(path)
    return sm.compile(mod, "cuda", sm.Options(precision=precision))


def _ours(compiled, image):
    from smartmem_tvm.bench.turns import inference

    return inference(compiled.vm, [image])


def _in_turns(runs: dict, torch) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                run()
                torch.cuda.synchronize()
                for _ in range(_RUNS):
                    start = time.perf_counter()
                    run()
                    torch.cuda.synchronize()
                    times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__":
    sys.exit(main())

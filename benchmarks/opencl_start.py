# SPDX-License-Identifier: Apache-2.0
"""How long a process takes from a model's file to its first result on an OpenCL device, and what the cache saves.

    python benchmarks/opencl_start.py                         Swin-T, TVM's default pipeline
    python benchmarks/opencl_start.py --models swin_t vit_b16 --into benchmarks/opencl_pocl.json

Each row is a process of its own: without our cache; with an empty cache; with the cache that the row before has filled.
The driver's own cache (PoCL's and NVIDIA's are known) is emptied or turned off before every row. The exit code is 1 if
the third does not give the first's numbers, or compiles anything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from opencl_results import record

ROOT = Path(__file__).parent.parent
ROWS = ("without a cache", "first process", "second process")


def main() -> int:
    """Do what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["swin_t"], metavar="NAME", help="files in models/")
    parser.add_argument("--pipeline", default="tvm", choices=("tvm", "smartmem"), help="(default: tvm)")
    parser.add_argument("--target", default="opencl", help="a TVM target (default: opencl)")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the results into this device's file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        _start(*args.child)
        return 0
    results = [_measure(model, args.pipeline, args.target) for model in args.models]
    if args.into:
        record(args.into, "start", results)
    return 0 if all(each["right"] and each[ROWS[2]]["compiled"] == 0 for each in results) else 1


def _measure(model: str, pipeline: str, target: str) -> dict:
    """The three rows of one model."""
    result: dict = {"model": model, "pipeline": pipeline, "target": target}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _compile(model, pipeline, target, folder / "model")
        print(f"{model}, {pipeline:8} compiled   building      first      start      later", flush=True)
        for row in ROWS:
            result[row] = found = _run(folder, row)
            times = "".join(f"{found[what]:9.2f} s" for what in ("build", "first", "start", "later"))
            print(f"  {row:16} {found['compiled']:8}{times}", flush=True)
        outputs = [np.load(folder / f"{row}.npy") for row in ROWS]
    result["right"] = bool(np.allclose(outputs[0], outputs[2], rtol=1e-5, atol=1e-5))
    result["times_faster"] = {row: result[row]["start"] / result[ROWS[2]]["start"] for row in ROWS[:2]}
    print(
        "  second process: " + ", ".join(f"{n:.1f} times as fast as {row}" for row, n in result["times_faster"].items())
    )
    return result


def _compile(model: str, pipeline: str, target: str, folder: Path) -> None:
    import smartmem_tvm
    from smartmem_tvm.deploy.export import save
    from smartmem_tvm.frontend.spec import input_spec
    from smartmem_tvm.target import parse_target

    compile_ = {"tvm": smartmem_tvm.compile_baseline, "smartmem": smartmem_tvm.compile}[pipeline]
    mod = smartmem_tvm.from_onnx(str(ROOT / "models" / f"{model}.onnx"))
    inputs = [{"name": n, "shape": list(shape), "dtype": dtype} for n, (shape, dtype) in input_spec(mod).items()]
    save(compile_(mod, parse_target(target)), folder, {"inputs": inputs, "outputs": []}, {})


def _run(folder: Path, row: str) -> dict:
    """One process; the driver finds nothing of an earlier one."""
    with tempfile.TemporaryDirectory() as drivers:
        ours = "0" if row == ROWS[0] else str(folder / "cache")
        environment = os.environ | {"SMARTMEM_OPENCL_CACHE": ours, "POCL_CACHE_DIR": drivers, "CUDA_CACHE_DISABLE": "1"}
        answer = folder / "answer.json"
        command = [
            sys.executable,
            __file__,
            "--child",
            str(folder / "model"),
            str(folder / f"{row}.npy"),
            str(answer),
        ]
        subprocess.run(command, env=environment, check=True)
        return json.loads(answer.read_text(encoding="utf-8"))


def _start(model: str, output: str, answer: str) -> None:
    """In a process: load the model, build its kernels, run it; then run it again."""
    import tvm

    from smartmem_tvm.deploy.compilers import LIBRARY
    from smartmem_tvm.deploy.inference_session import to_numpy
    from smartmem_tvm.deploy.manifest import WEIGHTS, read_manifest
    from smartmem_tvm.deploy.weights import Machine, map_weights
    from smartmem_tvm.target import has_textures

    folder = Path(model)
    manifest = read_manifest(folder)
    inputs = [_random(tuple(each["shape"]), each["dtype"]) for each in manifest["inputs"]]
    clock = [time.perf_counter()]
    code = tvm.runtime.load_module(str(folder / LIBRARY))
    weights = map_weights(folder / WEIGHTS, manifest["weights"])
    machine = Machine(code, weights, tvm.opencl(0), has_textures(tvm.target.Target(manifest["target"])))
    clock.append(time.perf_counter())
    compiled = int(tvm.get_global_func("smartmem.opencl.build")(code, 0))
    clock.append(time.perf_counter())
    for _ in range(4):
        result = to_numpy(machine["main"](*machine.tensors(inputs)))[0]
        clock.append(time.perf_counter())
    np.save(output, result)
    load, build, first, *later = np.diff(clock).tolist()
    found = {"load": load, "build": build, "first": first, "start": load + build + first, "later": median(later)}
    Path(answer).write_text(json.dumps({"compiled": compiled, **found}), encoding="utf-8")


def _random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).random(shape).astype(dtype)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan layouts by the reduction dimension, by FluidML's dynamic program and exactly, and time all of them in turns.

python benchmarks/layout_plans.py                    # benchmarks/layout_plans.json (`make bench-layout-plans`)
python benchmarks/layout_plans.py --only swin_t      # the row of one network again
python benchmarks/layout_plans.py --target cuda      # benchmarks/layout_plans_cuda.json
python benchmarks/render.py layout_plans             # and from it the table of docs/layout_plans.md

Costs are measured into a store that is thrown away. Each row is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from smartmem_tvm import Options, compile, from_onnx
from smartmem_tvm.cli.executors import profiling_executor
from smartmem_tvm.deploy.build import compile_baseline
from smartmem_tvm.deploy.fill_profiles import open_store
from smartmem_tvm.deploy.layout_times import measure_layouts
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.gpu_turn import gpu_turn
from smartmem_tvm.frontend import check_inputs, from_onnx_as_tvm, input_spec, read_model
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.pipeline import graph_phases, run_phases
from smartmem_tvm.runtime.device import describe
from smartmem_tvm.target import device_of, is_gpu, parse_target
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.bench.turns import RunEffort, in_turns, inference
from smartmem_tvm.tune.host import cpu_name

HERE = Path(__file__).resolve().parent
RESULTS = {"cpu": HERE / "layout_plans.json", "cuda": HERE / "layout_plans_cuda.json"}
RESULTS["opencl"] = HERE / "layout_plans_opencl.json"
NETWORKS = {
    "Swin-T": "swin_t",
    "BiFormer-S": "biformer_s",
    "ConvNeXt-T": "convnext_t",
    "EfficientViT-B3": "efficientvit_b3",
    "SMT-S": "smt_s",
    "ViT-B/16": "vit_b16",
    "BERT-base": "bert_base",
    "ConvBERT": "extra/convbert",
    "GPT-NeoX-160M": "extra/gpt_neox_160m",
    "I-BERT": "extra/ibert",
    "VGG-19": "extra/vgg19",
    "SD-UNet": "sd_unet",
}
LARGE = {"SD-UNet": (False, "fluid")}
"""Networks that are not compiled in all ways, because 23 GB do not hold so many copies of their weights."""
SIDE = 48  # of the images of the two small graphs
WAYS = (False, "reduction-dimension", "fluid", "exact")
EFFORT = RunEffort(budget=8.0, least=7, most=200)
TOLERANCE = 1e-4  # of the largest output
OF_TVM = 1e-3  # on a GPU TVM's own schedules add in other orders


def chain(x):
    """Tokens to images and back, one operator after the other: norms and matmuls want channels, the others rows."""
    for _ in range(3):
        y = op.nn.gelu(op.matmul(_norm(x, 32), _weight(32, 64)))
        y = op.nn.conv2d(_image(y, 64), _weight(64, 1, 5, 5), padding=2, groups=64)
        x = op.nn.gelu(op.matmul(_norm(_tokens(y, 64), 64), _weight(64, 32)))
    return x


def branches(x):
    """A tensor with three readers, which want it in two orders, and their sum; three times."""
    for _ in range(3):
        y = op.nn.gelu(op.matmul(x, _weight(32, 32)))
        image = _tokens(op.nn.conv2d(_image(y, 32), _weight(32, 1, 7, 7), padding=3, groups=32), 32)
        other = _tokens(op.nn.conv2d(_image(y, 32), _weight(32, 1, 3, 3), padding=1, groups=32), 32)
        x = op.add(op.add(image, other), op.matmul(_norm(y, 32), _weight(32, 32)))
    return x


def _image(x, channels: int):
    return op.reshape(op.permute_dims(x, (0, 2, 1)), (1, channels, SIDE, SIDE))


def _tokens(x, channels: int):
    return op.permute_dims(op.reshape(x, (1, channels, SIDE * SIDE)), (0, 2, 1))


def swin_block(x):
    """A block of Swin-T in its second stage: 28 x 28 tokens of 192 channels in windows of 7 x 7, 6 heads."""
    side, width, heads, window = 28, 192, 6, 7
    windows, tokens, depth = (side // window) ** 2, window**2, width // heads
    y = op.reshape(_norm(x, width), (side // window, window, side // window, window, width))
    y = op.reshape(op.permute_dims(y, (0, 2, 1, 3, 4)), (windows, tokens, width))
    y = op.reshape(op.matmul(y, _weight(width, 3 * width)), (windows, tokens, 3, heads, depth))
    y = op.permute_dims(y, (2, 0, 3, 1, 4))
    q, k, v = (op.squeeze(op.strided_slice(y, [0], [part], [part + 1]), [0]) for part in range(3))
    y = op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))), axis=-1), v)
    y = op.matmul(op.reshape(op.permute_dims(y, (0, 2, 1, 3)), (windows, tokens, width)), _weight(width, width))
    y = op.reshape(y, (side // window, side // window, window, window, width))
    x = op.add(x, op.reshape(op.permute_dims(y, (0, 2, 1, 3, 4)), (1, side * side, width)))
    y = op.nn.gelu(op.matmul(_norm(x, width), _weight(width, 4 * width)))
    return op.add(x, op.matmul(y, _weight(4 * width, width)))


GRAPHS: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "a chain": (chain, (1, SIDE * SIDE, 32)),
    "a branched graph": (branches, (1, SIDE * SIDE, 32)),
    "Swin-T's block": (swin_block, (1, 784, 192)),
}
SUBJECTS = {**dict.fromkeys(GRAPHS), **NETWORKS}


def _norm(x, width: int):
    return op.nn.layer_norm(x, _weight(width), _weight(width), axes=[-1])


def _weight(*shape: int):
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return relax.const(numbers.astype("float32"))


def read(name: str) -> tuple[tvm.IRModule, tvm.IRModule, list[np.ndarray]]:
    """A subject, the same as TVM imports it, and arrays for its inputs."""
    if name in GRAPHS:
        build, shape = GRAPHS[name]
        builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
        with builder.function("main", [x], attrs={"num_input": 1}):
            with builder.dataflow():
                out = builder.emit_output(builder.normalize(build(x)))
            builder.emit_func_output(out)
        mod = builder.get()
        return mod, mod, [np.random.default_rng(0).standard_normal(shape).astype("float32")]
    path = str(HERE.parent / "models" / f"{NETWORKS[name]}.onnx")
    model = read_model(path, {})
    mod = from_onnx(model)
    spec = input_spec(mod)
    return mod, from_onnx_as_tvm(path, {}), check_inputs(spec, random_inputs(spec, id_limits(model.proto), 0))


def measure(name: str, kind: str) -> dict:
    """The row of a subject on one of `RESULTS`."""
    target = parse_target(kind)
    mod, of_tvm, arrays = read(name)
    with target:
        graph = run_phases(mod, graph_phases(target), Options())
    arguments = argparse.Namespace(tracker=None, target=kind, threads=1)
    with tempfile.TemporaryDirectory() as folder, profiling_executor(arguments) as executor:
        store = open_store(Path(folder) / "costs.jsonl", target, 1)
        filled = measure_layouts(store, graph, executor)
        made = {str(way): compile(mod, target, Options(layout=way, profiles=store)) for way in LARGE.get(name, WAYS)}
    plans = {way: said for way, each in made.items() for said in read_log(each.graph) if "planner" in said}
    systems = made | {"tvm": compile_baseline(of_tvm, target)}
    reference = systems["False"].run(*arrays)
    for way, system in systems.items():
        for one, other in zip(system.run(*arrays), reference, strict=True):
            if np.abs(one - other).max() > (OF_TVM if way == "tvm" else TOLERANCE) * np.abs(other).max():
                raise UserError(f"{name} has other results with layout={way} than without it.")
    with gpu_turn() if is_gpu(target) else nullcontext():
        found = in_turns([_timed(system, arrays) for system in systems.values()], EFFORT)
    times = dict(zip(systems, found, strict=True))
    device = describe(device_of(target))["name"] if is_gpu(target) else cpu_name()
    return {
        "name": name,
        "forms": filled.forms,
        "kernels": filled.kernels,
        "tensors": plans["fluid"]["tensors"],
        "moved": {way: plan["moved"] for way, plan in plans.items()},
        "cost_ms": {"False": _ms(plans["fluid"]["seconds_now"])}
        | {way: _ms(plan["seconds"]) for way, plan in plans.items()},
        "seconds": {
            "measuring": round(filled.seconds, 1),
            "planning": round(made["fluid"].seconds["passes"] - made["False"].seconds["passes"], 2),
        },
        "ms": {way: _ms(median(each)) for way, each in times.items()},
        "ratio": {
            way: round(median(a / b for a, b in zip(each, times["False"], strict=False)), 4)
            for way, each in times.items()
        },
        "device": device,
        "threads": 1,
        "date": datetime.date.today().isoformat(),
    }


def _ms(seconds: float) -> float:
    return float(f"{1e3 * seconds:.5g}")


def _timed(system, arrays: list[np.ndarray]) -> Callable[[], float]:
    """Seconds of an inference whose inputs are on the device."""
    once = inference(system.vm, arrays)

    def seconds() -> float:
        start = time.perf_counter()
        once()
        return time.perf_counter() - start

    return seconds


def main() -> None:
    """Measure each subject in a process of its own and write the file; rows of others stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=RESULTS, default="cpu")
    parser.add_argument("--into", type=Path, help="default: benchmarks/layout_plans*.json")
    parser.add_argument("--only", nargs="+", default=list(SUBJECTS), metavar="NAME", help="names, or files of models/")
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(measure(args.alone, args.target)))
        return
    args.into = args.into or RESULTS[args.target]
    chosen = [name for name, file in SUBJECTS.items() if name in args.only or file in args.only]
    rows = {row["name"]: row for row in json.loads(args.into.read_text(encoding="utf-8"))} if args.into.exists() else {}
    for name in chosen:
        print(f"{name} ...", file=sys.stderr)
        command = [sys.executable, __file__, "--target", args.target, "--alone", name]
        rows[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        ordered = [rows[each] for each in SUBJECTS if each in rows]
        write(args.into, json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model of several sizes beside a model of each: weights, seconds of compiling, latency, and ONNX Runtime's output.

python benchmarks/several_sizes.py                        # ResNet-18 at eight batches
python benchmarks/several_sizes.py rec.onnx 'x:1,3,48,{64,96,128,192,256,320,480,640}'
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from datetime import date
from pathlib import Path
from statistics import geometric_mean, mean

import onnx
from resnet18 import resnet18

import smartmem_tvm
from smartmem_tvm.cli.several_sizes import parse_lists
from smartmem_tvm.frontend import read_sizes, run_onnxruntime
from smartmem_tvm.frontend.inputs import random_inputs
from smartmem_tvm.frontend.several_sizes import expanded
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.bench.systems import largest_error
from smartmem_tvm.tools.bench.turns import medians
from smartmem_tvm.tune.host import usable_cores

HERE = Path(__file__).resolve().parent
LISTS = "x:{1,2,3,4,5,6,7,8},3,224,224"


def compiled(models: list) -> tuple[smartmem_tvm.Compiled, dict[str, float]]:
    """Return the model of these sizes, and the seconds that it took, by the clock and of all processors."""
    start, used = time.perf_counter(), time.process_time()
    found = smartmem_tvm.compile(smartmem_tvm.from_onnx(models))
    return found, {"compile_s": time.perf_counter() - start, "processor_s": time.process_time() - used}


def weight_bytes(model: smartmem_tvm.Compiled) -> int:
    """Bytes of the weights outside of the code."""
    return sum(each.nbytes for each in model.weights)


def measure(name: str, source: str | onnx.ModelProto, lists: str, rounds: int, alone: int) -> dict:
    """Compile all sizes together, and so many of them alone, and measure both in turns."""
    models = read_sizes(source, lambda graph: expanded(parse_lists([lists]), graph))
    compiled(models[:1])  # what is made once in a process is no part of a compilation
    several, seconds = compiled(models)
    sizes, wanted = [], {len(models) * number // alone for number in range(alone)}
    for number, model in enumerate(models):
        arrays = random_inputs(model.inputs, {})
        wrong = largest_error(several.run(arrays), run_onnxruntime(model, arrays))
        shapes = {each: list(shape) for each, (shape, _) in model.inputs.items()}
        sizes.append({"shapes": shapes, "error": wrong})
        if number not in wanted:
            continue
        one, alone_seconds = compiled([model])
        calls = [lambda each=each, arrays=arrays: each.run(arrays) for each in (one, several)]
        alone_ms, several_ms = (1e3 * each for each in medians(calls, rounds))
        sizes[-1] |= {**alone_seconds, "weights": weight_bytes(one), "alone_ms": alone_ms, "several_ms": several_ms}
        print(json.dumps(sizes[-1]), file=sys.stderr)
        del one, calls
        gc.collect()
    both = [each for each in sizes if "weights" in each]
    return {
        "model": name,
        **seconds,
        "weights": weight_bytes(several),
        "kernels": len(several.rules),
        "processor_ratio": seconds["processor_s"] / mean(each["processor_s"] for each in both),
        "weights_ratio": weight_bytes(several) / max(each["weights"] for each in both),
        "speed_ratio": geometric_mean(each["several_ms"] / each["alone_ms"] for each in both),
        "error": max(each["error"] for each in sizes),
        "sizes": sizes,
    }


def main() -> None:
    """Measure one network, and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="an ONNX file (default: ResNet-18)")
    parser.add_argument("lists", nargs="?", default=LISTS, help=f"its sizes (default: '{LISTS}')")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--alone", type=int, default=8, help="how many sizes are compiled alone, too")
    parser.add_argument("--into", type=Path, default=HERE / "several_sizes.json")
    args = parser.parse_args()
    name = Path(args.model).stem if args.model else "ResNet-18"
    found = measure(name, args.model or resnet18(), args.lists, args.rounds, args.alone)
    kept = json.loads(args.into.read_text())["networks"] if args.into.exists() else []
    rows = [each for each in kept if each["model"] != name] + [found]
    content = {"date": date.today().isoformat(), "machine": machine(usable_cores()), "networks": rows}
    write(args.into, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

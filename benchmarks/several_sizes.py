#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model of several sizes beside a model of each: weights, seconds of compiling, latency, and ONNX Runtime's output.

python benchmarks/several_sizes.py                        # ResNet-18 at eight batches
python benchmarks/several_sizes.py rec.onnx 'x:1,3,48,{64,96,128,192,256,320,480,640}'
python benchmarks/several_sizes.py bert.onnx 'ids:1,{16,32,48,64,80,96,112,128}' 'mask:1,{16,32,48,64,80,96,112,128}'

Latencies are least processor times in turns on one thread: other programs on the machine only add to them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import date
from pathlib import Path
from statistics import geometric_mean, mean

os.environ.setdefault("TVM_NUM_THREADS", "1")

import onnx
from open_dimension import processor_ms
from resnet18 import resnet18

import smartmem_tvm
from smartmem_tvm.cli.several_sizes import parse_lists
from smartmem_tvm.frontend import read_sizes, run_onnxruntime
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.frontend.several_sizes import expanded
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import write
from smartmem_tvm.tools.bench.systems import largest_error
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


def measure(name: str, source: str | onnx.ModelProto, lists: list[str], rounds: int, alone: int) -> dict:
    """Compile so many sizes alone, and all of them together, and measure both in turns."""
    models = read_sizes(source, lambda graph: expanded(parse_lists(lists), graph))
    compiled(models[:1])  # what is made once in a process is no part of a compilation
    wanted = {len(models) * number // alone for number in range(alone)}
    # The first model of a process reads its weights more slowly, so that all of one size come first.
    singles = {number: compiled([models[number]]) for number in sorted(wanted)}
    several, seconds = compiled(models)
    sizes, calls = [], []
    for number, model in enumerate(models):
        arrays = random_inputs(model.inputs, id_limits(model.proto))
        wrong = largest_error(several.run(arrays), run_onnxruntime(model, arrays))
        shapes = {each: list(shape) for each, (shape, _) in model.inputs.items()}
        sizes.append({"shapes": shapes, "error": wrong})
        if number in wanted:
            one, alone_seconds = singles[number]
            sizes[-1] |= {**alone_seconds, "weights": weight_bytes(one)}
            calls += [each.session().bind(arrays).run for each in (one, several)]
    times = processor_ms(calls, rounds, systems=2)
    for size, *pair in zip((each for each in sizes if "weights" in each), times[::2], times[1::2]):
        size |= dict(zip(("alone_ms", "several_ms"), pair, strict=True))
        print(json.dumps(size), file=sys.stderr)
    both = [each for each in sizes if "weights" in each]
    return {
        "model": name,
        **seconds,
        "weights": weight_bytes(several),
        "kernels": len(several.rules),
        "functions": len(models) - sum("Share" in each["pass"] for each in read_log(several.graph)),
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
    parser.add_argument("lists", nargs="*", default=[LISTS], help=f"its sizes (default: '{LISTS}')")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--alone", type=int, default=8, help="how many sizes are compiled alone, too")
    parser.add_argument("--into", type=Path, default=HERE / "several_sizes.json")
    args = parser.parse_args()
    name = Path(args.model).stem if args.model else "ResNet-18"
    found = measure(name, args.model or resnet18(), args.lists, args.rounds, args.alone)
    kept = json.loads(args.into.read_text())["networks"] if args.into.exists() else []
    rows = [each for each in kept if each["model"] != name] + [found]
    found |= {"date": date.today().isoformat(), "machine": machine(usable_cores()), "load": os.getloadavg()[0]}
    content = {"networks": rows}
    write(args.into, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

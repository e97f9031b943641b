#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model with an open dimension beside static compiles and ONNX Runtime, on one thread, in turns.

python benchmarks/open_dimension.py                                       # ResNet-18, batches of 1 to 16
python benchmarks/open_dimension.py bert.onnx ids:1..8,64 mask:1..8,64 --items 1 5 8
python benchmarks/open_dimension.py bert.onnx ids:1,1..128 mask:1,1..128 --items 1 7 16 37 64 100 128 --rounds 50
python benchmarks/open_dimension.py rec.onnx x:1,3,48,32..320 --check     # no times: results and kernels at 20 sizes
python benchmarks/open_dimension.py --table FOLDER --rounds 30             # the networks that open_networks.py wrote
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path
from statistics import geometric_mean

os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime
from resnet18 import resnet18

import smartmem_tvm
from smartmem_tvm.cli.several_sizes import parse_lists
from smartmem_tvm.deploy.compiled import Compiled
from smartmem_tvm.frontend import read_open
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.frontend.open_dimension import Opened
from smartmem_tvm.graph_report import graph_cost

_SIZES = 20  # sizes that are checked
_SYSTEMS = 3  # ours with an open dimension, ours compiled for the size, ONNX Runtime
_SPREAD = 10  # primes among them, less one
OUTPUT = Path(__file__).with_name("open_dimension.json")
_BATCH, _TOKENS = [1, 3, 8], [1, 7, 24, 41, 64]
_PICTURES, _IDS = ["x:1..8,3,224,224"], ["ids:1,1..64"]
_MASKED = [*_IDS, "mask:1,1..64"]
TABLE = {
    "resnet18": (_PICTURES, _BATCH),
    "mobilenetv3_small": (_PICTURES, _BATCH),
    "bert": (_MASKED, _TOKENS),
    "distilbert": (_MASKED, _TOKENS),
    "roberta": (_MASKED, _TOKENS),
    "t5_encoder": (_MASKED, _TOKENS),
    **dict.fromkeys(("electra", "albert", "mpnet", "deberta_v2", "gpt2_last", "gpt2_all"), (_MASKED, _TOKENS)),
    **dict.fromkeys(("efficientnet_lite0", "convnext_atto", "vit_tiny"), (_PICTURES, _BATCH)),
    "wav2vec2": (["wave:1,800..1600"], [800, 1023, 1280, 1600]),
    "whisper_encoder": (["x:1,80,40..56"], [40, 47, 56]),
    "gru_tagger": (_IDS, _TOKENS),
    "bilstm_tagger": (_IDS, _TOKENS),
    "text_cnn": (["ids:1,5..64"], [5, 7, 24, 41, 64]),
    "attacut-c": (["input:1,1..80"], [1, 7, 24, 41, 80]),
}
"""Network -> shapes of its inputs, and the sizes that are measured."""


def processor_ms(calls: list, rounds: int, systems: int = _SYSTEMS) -> list[float]:
    """Return the least processor time of each call, in turns: other programs on the machine only add to it.

    The systems of a size, so many, follow one another in another order in each round: what runs after a large model of
    another system finds caches that it has filled.
    """
    least = [float("inf")] * len(calls)
    for each in calls:
        each()
    for turn in range(rounds):
        for place in range(len(calls)):
            number = place - place % systems + (place + turn) % systems
            start = time.process_time()
            calls[number]()
            least[number] = min(least[number], time.process_time() - start)
    return [1e3 * each for each in least]


def reference(source: str | onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = source if isinstance(source, str) else source.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _static(found: Opened, items: int) -> tuple[dict, Compiled, float]:
    """Return inputs with so many items, a model compiled for them alone, and its processor seconds."""
    (bound,) = found.at(items)
    start = time.process_time()
    static = smartmem_tvm.compile(smartmem_tvm.from_onnx(bound))
    return random_inputs(bound.inputs, id_limits(bound.proto)), static, time.process_time() - start


def twenty(least: int, most: int) -> list[int]:
    """Return sizes to check: both ends, powers of two and numbers beside them, and primes, spread over the range.

    Where these are fewer than 20, the numbers between that are the farthest from them come besides, as far as there are
    some.
    """
    primes = [n for n in range(max(2, least), most) if all(n % k for k in range(2, int(n**0.5) + 1))]
    spread = {primes[round(at * (len(primes) - 1) / _SPREAD)] for at in range(_SPREAD + 1)} if primes else set()
    near = sorted(n for k in range(1, 13) for n in (2**k - 1, 2**k, 2**k + 1) if least < n < most and n not in spread)
    kept = sorted({least, most, *spread})
    found = {*kept, *near[:: max(1, len(near) // (_SIZES - len(kept)) or 1)][: _SIZES - len(kept)]}
    while len(found) < min(_SIZES, most - least + 1):
        left = [n for n in range(least, most) if n not in found]
        found.add(max(left, key=lambda n: min(abs(n - at) for at in found)))
    return sorted(found)


def check(name: str, source: str, shapes: list[str]) -> dict:
    """Return the largest error over twenty sizes, and the kernels of each function beside those of a static compile."""
    start = time.process_time()
    try:
        found = read_open(source, parse_lists(shapes))
    except smartmem_tvm.UserError as reason:
        return {"model": name, "shapes": shapes, "refused": str(reason)}
    model = smartmem_tvm.compile(found.module)
    seconds, session, error = time.process_time() - start, reference(source), 0.0
    (span,) = found.ranges
    sizes = twenty(span.least, span.most)
    for size in sizes:
        (bound,) = found.at(size)
        arrays = random_inputs(bound.inputs, id_limits(bound.proto))
        for got, wanted in zip(model.run(arrays), session.run(None, arrays), strict=True):
            if got.shape != wanted.shape:
                raise AssertionError(f"{name}, {size}: {got.shape} instead of {wanted.shape}")
            error = max(error, float(np.abs(got.astype("float64") - wanted).max() / max(np.abs(wanted).max(), 1e-30)))
    kernels = []
    for tile in (each for group in model.open for each in group["tiles"]):
        (bound,) = found.at(tile["items"])
        costs = (
            graph_cost(model.graph, tile["function"]),
            graph_cost(smartmem_tvm.optimize(smartmem_tvm.from_onnx(bound))),
        )
        kernels.append([tile["items"], *(number for each in costs for number in (each.kernels, each.layout_kernels))])
    facts = {"model": name, "shapes": shapes, "sizes": sizes, "error": error, "compile_s": seconds}
    return {**facts, "items, kernels, layout kernels, static kernels, static layout kernels": kernels}


def measured(name: str, source: str | onnx.ModelProto, shapes: list[str], items: list[int], rounds: int) -> dict:
    """Return the times of each size beside a static compile and ONNX Runtime, and what the tiles have of kernels."""
    start = time.process_time()
    found = read_open(source, parse_lists(shapes))
    seconds = time.process_time() - start
    # The open model is compiled last: the first model of a process reads its weights up to 1.2 times as slowly.
    statics = [_static(found, each) for each in items]
    start = time.process_time()
    model = smartmem_tvm.compile(found.module)
    seconds += time.process_time() - start
    session, rows, runs = reference(source), [], []
    for count, (arrays, static, alone) in zip(items, statics, strict=True):
        wanted, got = session.run(None, arrays), model.run(arrays)
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, wanted, strict=True))
        runs += [partial(model.run, arrays), partial(static.run, arrays), partial(session.run, None, arrays)]
        kernels = graph_cost(static.graph)
        rows.append({"items": count, "error": error, "static_compile_s": alone})
        rows[-1] |= {"static_kernels": kernels.kernels, "layout": kernels.layout_kernels}
    times = processor_ms(runs, rounds)
    for row, each in zip(rows, zip(times[::3], times[1::3], times[2::3])):
        row |= dict(zip(("open_ms", "static_ms", "onnxruntime_ms"), each, strict=True))
    tiles = {
        each["items"]: (cost.kernels, cost.layout_kernels)
        for group in model.open
        for each in group["tiles"]
        for cost in [graph_cost(model.graph, each["function"])]
    }
    return {
        "model": name,
        "shapes": shapes,
        "compile_s": seconds,
        "kernels and layout kernels of tiles": tiles,
        "to_static": geometric_mean(each["open_ms"] / each["static_ms"] for each in rows),
        "to_onnxruntime": geometric_mean(each["open_ms"] / each["onnxruntime_ms"] for each in rows),
        "sizes": rows,
    }


def table(folder: Path, names: list[str], rounds: int, output: Path) -> None:
    """Measure the networks of the table that a folder has, each in a process of its own, and keep their rows."""
    content = json.loads(output.read_text())
    kept = {each["model"]: each for each in content.get("timed", {}).get("rows", ())}
    for name, (shapes, items) in TABLE.items():
        file = folder / f"{name}.onnx"
        if not file.is_file() or (names and name not in names):
            continue
        command = [sys.executable, __file__, str(file), *shapes, "--rounds", str(rounds), "--items", *map(str, items)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            print(f"{name}: {found.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        kept[name] = json.loads(found.stdout.splitlines()[-1])
        print(json.dumps({key: kept[name][key] for key in ("model", "to_static", "to_onnxruntime")}), flush=True)
        rows = [kept[each] for each in TABLE if each in kept]
        means = {key: geometric_mean(row[key] for row in rows) for key in ("to_static", "to_onnxruntime")}
        timed = {"machine": _machine(), "rounds": rounds, **means, "rows": rows}
        output.write_text(written({**content, "timed": timed}) + "\n")


def written(content: dict) -> str:
    """Return a mapping as JSON, with a line for each row of its lists."""
    parts = []
    for key, value in content.items():
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n]"
        else:
            text = written(value) if isinstance(value, dict) else json.dumps(value)
        parts.append(f"{json.dumps(key)}: {text}")
    return "{" + ",\n".join(parts) + "}"


def _machine() -> str:
    """Return the processor, the day, and how many programs wait for its cores."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = models[0].partition(":")[2].strip() if models else "a processor without a name"
    return f"{processor}, {date.today()}, one thread, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main() -> None:
    """Measure one network, or those of the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="an ONNX file (default: ResNet-18)")
    parser.add_argument("shapes", nargs="*", help="shapes of its inputs, one dimension a range (default: x:1..16,...)")
    parser.add_argument("--items", type=int, nargs="+", default=[1, 3, 7], help="numbers of items")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--check", action="store_true", help="compare results and kernels at twenty sizes, without times"
    )
    parser.add_argument("--table", type=Path, metavar="FOLDER", help="measure the networks that a folder has")
    parser.add_argument("--names", nargs="+", default=[], help="of the table, those to measure (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, help=f"rows of --table (default: {OUTPUT.name})")
    args = parser.parse_args()
    if args.table is not None:
        table(args.table, args.names, args.rounds, args.output)
        return
    name = Path(args.model).stem if args.model else "ResNet-18"
    if args.check:
        print(json.dumps(check(name, args.model, args.shapes)))
        return
    shapes = args.shapes or ["x:1..16,3,224,224"]
    print(json.dumps(measured(name, args.model or resnet18(), shapes, args.items, args.rounds)))


if __name__ == "__main__":
    main()

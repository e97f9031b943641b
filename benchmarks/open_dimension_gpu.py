#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models with an open batch or an open length on a GPU, beside static compiles of each size.

python benchmarks/open_dimension_gpu.py                                     # CUDA: ResNet-18 and two BERTs
python benchmarks/open_dimension_gpu.py --networks bert2 --small --target opencl    # tries the script out

BERT has widths of BERT-base, weights drawn at random, a mask among its inputs and ids (1, 1..128); ResNet-18 takes
batches of 1 to 16. Each row of the output is one JSON object, printed as soon as it is known. `run_ms` is the time of
the public ``run``, from an array of numpy to an array; `device_ms` that of the functions that it calls, with their
inputs on the device and CUDA graphs. Both are medians, in turns with the static compile. `error` is the largest
difference from ONNX Runtime's results, over the largest of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from resnet18 import resnet18
from written_network import Graph

import smartmem_tvm as sm
from smartmem_tvm.deploy.compiled import Compiled
from smartmem_tvm.frontend import read_open
from smartmem_tvm.frontend.inputs import random_inputs
from smartmem_tvm.graph_report import graph_cost

ROUNDS = 40
MOST = 128  # tokens
_VOCABULARY = 1000


def bert(layers: int, width: int = 768, heads: int = 12, inner: int = 3072) -> onnx.ModelProto:
    """Return an encoder over ids (1, n) and a mask (1, n), as exporters write it."""
    graph = Graph()
    one, zero, first = (graph.constant(np.array(each)) for each in ([1], [0], np.float32(1)))
    table, places = (graph.weight(*shape, depth=1) for shape in ((_VOCABULARY, width), (1, 512, width)))
    length = graph.op("Shape", "ids", start=1, end=2)
    places = graph.op("Slice", places, zero, length, one)
    x = graph.norm(graph.op("Add", graph.op("Gather", table, "ids"), places), width)
    mask = graph.op("Unsqueeze", graph.op("Cast", "mask", to=TensorProto.FLOAT), graph.constant(np.array([1, 2])))
    mask = graph.op("Mul", graph.op("Sub", first, mask), graph.constant(np.float32(-1e4)))
    for _ in range(layers):
        x = graph.encoder(x, None, width, heads, mask, inner)
    return graph.model(
        x, [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "n"]) for name in ("ids", "mask")]
    )


def networks(small: bool) -> dict[str, tuple]:
    """Return name -> how to make the model, its open shapes, and the sizes to measure."""
    widths, lengths = ((64, 4, 128), (1, 7, 16)) if small else ((768, 12, 3072), (128, 37, 100, 7, 64, 1, 16, 127))
    most = max(lengths)
    shapes = {"ids": (1, f"1..{most}"), "mask": (1, f"1..{most}")}
    return {
        "resnet18": (resnet18, {"x": ("1..16", 3, 224, 224)}, (1, 16, 5, 13, 8, 3, 2)),
        "bert2": (lambda: bert(2, *widths), shapes, lengths),
        "bert4": (lambda: bert(4, *widths), shapes, lengths),
    }


def inputs_of(spec: dict, length: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return inputs, the last third of the mask hidden."""
    arrays = random_inputs(spec, {"ids": _VOCABULARY, "mask": 2})
    if "mask" in arrays:
        arrays["mask"] = (np.arange(arrays["mask"].shape[1])[None] < max(1, length - length // 3)).astype("int64")
        arrays["ids"] = random.integers(0, _VOCABULARY, arrays["ids"].shape)
    return arrays


def device_calls(model: Compiled, arrays: dict[str, np.ndarray], count: int) -> list:
    """Return calls of the functions that `run` calls for the inputs, with inputs on the device."""
    groups, vm = model.open, model.vm
    if not groups:
        tensors = vm.tensors(list(arrays.values()))
        return [lambda function=vm["main"]: function(*tensors)]
    (group,) = groups
    if group.get("length"):
        capacity = next(each for each in group["tiles"] if each["items"] >= count)
        padded = [np.pad(each, [(0, 0), (0, capacity["items"] - count)]) for each in arrays.values()]
        tensors = vm.tensors([*padded, np.array([count])])
        return [lambda function=vm[capacity["function"]]: function(*tensors)]
    calls, (array,) = [], arrays.values()
    functions = {each["items"]: each["function"] for each in group["tiles"]}
    for items in model._first.tiles._groups[0].cover(count) if count not in functions else (count,):
        tensor = vm.tensor(np.resize(array, (items, *array.shape[1:])))
        calls.append(lambda function=vm[functions[items]], tensor=tensor: function(tensor))
    return calls


def in_turns(runs: list, device, rounds: int) -> list[float]:
    """Return the median milliseconds of each run, until the device is done."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            device.sync()
            times[number].append(1e3 * (time.perf_counter() - start))
    return [statistics.median(each[len(each) // 4 :]) for each in times]


def measure(name: str, made: tuple, target: str, precision: str, rounds: int) -> None:
    """Print a row for each size of a network."""
    build, shapes, sizes = made
    proto, random = build(), np.random.default_rng(1)
    options = sm.Options(precision=precision)
    start = time.perf_counter()
    found = read_open(proto, shapes)
    model = sm.compile(found.module, target, options)
    seconds = time.perf_counter() - start
    tiles = {each["items"]: graph_cost(model.graph, each["function"]).kernels for each in model.open[0]["tiles"]}
    facts = {"network": name, "target": target, "precision": precision, "open_compile_s": round(seconds, 1)}
    print(json.dumps({**facts, "kernels of tiles": tiles, "in graphs": model.kernels_per_graph}), flush=True)
    data = proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    ratios = []
    for size in sizes:
        (bound,) = found.at(size)
        arrays = inputs_of(bound.inputs, size, random)
        start = time.perf_counter()
        static = sm.compile(sm.from_onnx(bound), target, options)
        row = {"size": size, "static_compile_s": round(time.perf_counter() - start, 1)}
        wanted = session.run(None, arrays)[0]
        for label, each in (("error", model), ("static_error", static)):
            got = each.run(arrays)[0]
            row[label] = float(np.abs(got.astype("float64") - wanted).max() / np.abs(wanted).max())
        row["static_kernels"] = graph_cost(static.graph).kernels
        device = model.vm.device
        runs = [lambda each=each, arrays=arrays: each.run(arrays) for each in (model, static)]
        row["run_ms"], row["static_run_ms"] = in_turns(runs, device, rounds)
        calls = [device_calls(each, arrays, size) for each in (model, static)]
        runs = [lambda each=each: [call() for call in each] for each in calls]
        row["device_ms"], row["static_device_ms"] = in_turns(runs, device, rounds)
        row["calls"] = len(calls[0])
        ratios.append((row["run_ms"] / row["static_run_ms"], row["device_ms"] / row["static_device_ms"]))
        print(json.dumps({"network": name, "precision": precision, **row}), flush=True)
    means = [round(statistics.geometric_mean(each), 3) for each in zip(*ratios)]
    print(json.dumps({"network": name, "precision": precision, "to static: run, device": means}), flush=True)


def main() -> None:
    """Measure the networks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["bert2", "resnet18", "bert4"])
    parser.add_argument("--precision", nargs="+", default=["half", "float32"])
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small BERT")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    for precision in args.precision:
        for name in args.networks:
            try:
                measure(name, networks(args.small)[name], args.target, precision, args.rounds)
            except Exception as error:
                where = traceback.format_exc(limit=-3)[-600:]
                print(json.dumps({"network": name, "error": f"{type(error).__name__}: {error}"[:400], "where": where}))


if __name__ == "__main__":
    main()

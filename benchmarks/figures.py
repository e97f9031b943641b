#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the figures of the README: kernels, bytes, error, latency and compile time of the demo models.

    python benchmarks/figures.py              # measure, write benchmarks/figures.json, print the tables
    python benchmarks/figures.py --print      # print the tables of the committed file

Latencies of the two graphs are taken in turns within one run, with the same schedules; see `smartmem stats --run`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("figures.json")
# Model -> (name, the paper's SmartMem kernels, at most this many of ours)
MODELS = {
    "swin_t": ("Swin-T", 158, 119),
    "vit_b16": ("ViT-B/16", 112, 112),
    "convnext_t": ("ConvNeXt-T", 81, 83),
    "bert_base": ("BERT-base", None, 111),
    "resnext50": ("ResNeXt-50", 55, 56),
}
DEPTHS = {"1x": "swin_t", "2x": "extra/swin_t_2x", "4x": "extra/swin_t_4x"}


def measure_model(name: str, rounds: int, unscheduled: bool) -> dict:
    """All figures of one demo model."""
    import onnxruntime
    import tvm

    from smartmem_tvm import compile, compile_baseline, from_onnx, graph_cost
    from smartmem_tvm.cli.timing import interleaved
    from smartmem_tvm.frontend import from_onnx_as_tvm, load_onnx
    from smartmem_tvm.runtime.launches import count_launches

    path = ROOT / "models" / f"{name}.onnx"
    model = load_onnx(path)
    ours, theirs = compile(from_onnx(path)), compile_baseline(from_onnx_as_tvm(path))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = _inputs(session)
    expected = session.run(None, inputs)
    arrays = list(inputs.values())
    error = max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(expected, ours.run(*arrays), strict=True))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    calls = [lambda each=each: each.vm["main"](*tensors) for each in (theirs, ours)]
    seconds = interleaved(calls, rounds)
    row = {
        "tvm_default": {**graph_cost(theirs.graph).as_dict(), "launches": sum(count_launches(theirs, arrays).values())},
        "smartmem": {**graph_cost(ours.graph).as_dict(), "launches": sum(count_launches(ours, arrays).values())},
        "error": float(error),
        "latency_ms": {"tvm_default": seconds[0] * 1e3, "smartmem": seconds[1] * 1e3},
    }
    if unscheduled:
        plain = compile_baseline(from_onnx_as_tvm(path), schedule=False)
        row["latency_ms"]["tvm_unscheduled"] = interleaved([lambda: plain.vm["main"](*tensors)], 3, warmup=1)[0] * 1e3
    return row


def _inputs(session) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    draw = {
        "tensor(float)": lambda shape: random.standard_normal(shape).astype("float32"),
        "tensor(int64)": lambda shape: random.integers(0, 30000, shape),
    }
    return {each.name: draw[each.type](each.shape) for each in session.get_inputs()}


def measure_compile(name: str) -> dict:
    """Seconds of this package's passes (graph and schedules) and of TVM's code generator for one model."""
    from smartmem_tvm import compile, from_onnx, graph_cost

    module = from_onnx(ROOT / "models" / f"{name}.onnx")
    compiled = compile(module)
    return {**compiled.seconds, "kernels": graph_cost(compiled.graph).kernels}


def measure(rounds: int) -> dict:
    """Everything, with the machine and the date."""
    os.environ.setdefault("TVM_BIND_THREADS", "0")  # pinned threads would share their cores with other processes
    from smartmem_tvm._version import TVM_PINS
    from smartmem_tvm.cli.timing import set_threads

    threads = set_threads(None)
    compile_time = {label: measure_compile(name) for label, name in DEPTHS.items()}
    rows = {}
    for name in MODELS:
        start = time.perf_counter()
        rows[name] = measure_model(name, rounds, unscheduled=name == "swin_t")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    machine = {"cpu": _cpu(), "threads": threads, "date": date.today().isoformat(), "tvm": TVM_PINS["apache-tvm"]}
    return {"machine": machine, "rounds": rounds, "models": rows, "compile": compile_time}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor()


def tables(results: dict) -> str:
    """The README's tables in Markdown."""
    machine = results["machine"]
    lines = [
        "| model | TVM 0.27 kernels, of which layout | paper's SmartMem | ours, at most | ours, of which layout |"
        " activations moved | error | latency against TVM's graph |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, (name, paper, bound) in MODELS.items():
        row = results["models"][key]
        before, after, latency = row["tvm_default"], row["smartmem"], row["latency_ms"]
        moved = after["bytes_moved"]["activations"] / before["bytes_moved"]["activations"]
        lines.append(
            f"| {name} | {before['kernels']}, {before['layout_kernels']} | {paper or '-'} | {bound} |"
            f" **{after['launches']}, {after['layout_kernels']}** | {moved:.2f}x | {row['error']:.1e} |"
            f" {latency['smartmem'] / latency['tvm_default']:.2f}x"
            f" ({latency['smartmem']:.0f} ms against {latency['tvm_default']:.0f} ms) |"
        )
    swin = results["models"]["swin_t"]["latency_ms"]
    lines += [
        "",
        f"Measured on {machine['cpu']}, {machine['threads']} threads, {machine['date']}; medians of"
        f" {results['rounds']} runs taken in turns. Swin-T as TVM compiles it without schedules:"
        f" {swin['tvm_unscheduled']:.0f} ms, {swin['tvm_unscheduled'] / swin['smartmem']:.0f} times ours.",
        "",
        "| Swin-T, blocks | kernels | our passes, s | TVM's code generation, s |",
        "|---|---|---|---|",
    ]
    for label, row in results["compile"].items():
        lines.append(f"| {label} | {row['kernels']} | {row['passes']:.1f} | {row['codegen']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the tables of the committed results only")
    parser.add_argument("--readme", action="store_true", help="put the tables into README.md as well")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each graph (default: 15)")
    args = parser.parse_args()
    if not args.print:
        partial = RESULTS.with_suffix(".part")
        partial.write_text(json.dumps(measure(args.rounds), indent=2) + "\n", encoding="utf-8")
        partial.replace(RESULTS)
    text = tables(json.loads(RESULTS.read_text(encoding="utf-8")))
    print(text)
    if args.readme:
        readme = ROOT / "README.md"
        before, rest = readme.read_text(encoding="utf-8").split("<!-- figures -->\n")
        after = rest.split("\n<!-- /figures -->")[-1]
        readme.write_text(f"{before}<!-- figures -->\n{text}\n<!-- /figures -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token of the Llama of `decoding_peers.py` on a phone's GPU, without the phone: kernels, bytes, and their code.

python benchmarks/decoding_adreno.py              # benchmarks/decoding_adreno.json, minutes of a core
python benchmarks/decoding_adreno.py --rows 256 --layers 2 --precisions half --memory textures --kernels
python benchmarks/decoding_adreno.py --table      # nothing is compiled: the tables of docs/decoding.md

Bytes are the lines from memory by the model of accesses (docs/memory_accesses.md), with all rows of the caches taken,
beside those that a token has to read: its weights in the types that are stored, and the caches. Instructions,
registers, waves and scratch memory are counts of Mesa's compiler (docs/adreno.md; `smartmem isa --setup` gets it).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from decoder_files import FLOAT32, row_bytes, token_bytes
from decoder_network import TENSOR, Decoder

RESULTS = Path(__file__).resolve().parent / "decoding_adreno.json"
TARGET = "adreno-740"
ROWS, LAYERS = (256, 2048), 12
PRECISIONS = ("float32", "half")
MEMORY = {"textures": True, "buffers": False}
"""Where weights and tensors are; caches are in buffers."""
GOAL = 1.1  # bytes of a token over those of its weights and caches


def network(rows: int, layers: int) -> Decoder:
    """Return the network for one token, with caches of so many rows."""
    return Decoder(32000, 768, layers, 12, 4, 2048, rows, 1, TENSOR)


def needed_bytes(sizes: Decoder, precision: str) -> int:
    """Return the bytes that a token has to read: weights in the precision's type, and caches, which are float32."""
    weights = token_bytes(sizes, FLOAT32) // (2 if precision == "half" else 1)
    return weights + sizes.capacity * row_bytes(sizes)


def token(mod, sizes: Decoder, precision: str, memory: str) -> dict:
    """Return what one token takes, as plain data."""
    import smartmem_tvm as sm
    from smartmem_tvm.target import parse_target, target_row
    from smartmem_tvm.tools.isa.compiler import compile_all, gpu_of, require
    from smartmem_tvm.tools.isa.kernels import kernel_codes
    from smartmem_tvm.tools.isa.network import network_kernels

    target = parse_target(TARGET)
    row = target_row(target)
    gpu = gpu_of(row)
    require(gpu)
    options = sm.Options(caches=True, textures=MEMORY[memory], precision=precision)
    found = network_kernels(mod, target, options)
    codes = kernel_codes(found.sources, compile_all(found.sources, gpu))
    compiled = [{**code.as_dict(row), **found.facts[name]} for name, code in codes.items()]
    kernels = list(_kernels(found.scheduled, target, row, compiled))
    nbytes, needed = sum(each["bytes"] for each in kernels), needed_bytes(sizes, precision)
    code = [each for each in compiled if not each["refused"]]
    return {
        "rows": sizes.capacity,
        "layers": sizes.layers,
        "precision": precision,
        "memory": memory,
        "kernels": sum(each["launches"] * each["kernels"] for each in kernels),
        "bytes": nbytes,
        "needed_bytes": needed,
        "of_needed": round(nbytes / needed, 4),
        "modelled_ms": round(1e3 * sum(each["modelled_seconds"] for each in kernels), 3),
        "needed_ms": round(1e3 * needed / row.bandwidth, 3),
        "not_modelled": [each["kernel"] for each in kernels if each["not_modelled"]],
        "instructions": sum(each["launches"] * each["instructions"] for each in code),
        "most_registers": max(each["registers"] for each in code),
        "least_waves": min(each["waves"] for each in code),
        "scratch": sum(each["scratch"] for each in code),
        "refused": [each["kernel"] for each in compiled if each["refused"]],
        "each": kernels,
        "date": date.today().isoformat(),
    }


def _kernels(scheduled, target, row, compiled: list[dict]) -> Iterator[dict]:
    """Yield each kernel of a token: its launches, the bytes of all of them, and counts of its code."""
    from smartmem_tvm.analysis.kernel_time import memory_parts, overlapped
    from smartmem_tvm.analysis.network_access import network_accesses
    from smartmem_tvm.deploy.textures import staged
    from smartmem_tvm.tools.isa.sources import function_of

    counts = ("instructions", "registers", "waves", "scratch")
    for each in network_accesses(staged(scheduled, target), row):
        of_it = [code for code in compiled if function_of(code["kernel"]) == each.name]
        found = each.accesses
        seconds = overlapped(memory_parts(found * (1 / each.launches), row)) * each.launches if found else 0.0
        yield {
            "kernel": each.name,
            "rule": of_it[0]["rule"],
            "launches": each.launches,
            "kernels": len(of_it),  # of OpenCL, in a launch of the graph
            "bytes": round(found.l2_misses * row.sector_bytes) if found else 0,
            "asked_bytes": round(found.lines * row.sector_bytes) if found else 0,
            "modelled_seconds": seconds,
            "not_modelled": each.reason,
            **{count: [code.get(count) for code in of_it] for count in counts},
        }


def measured(rows: int, layers: int, precisions, memories) -> Iterator[dict]:
    """Yield the result of each precision, with weights in textures and in buffers."""
    import smartmem_tvm as sm

    sizes = network(rows, layers)
    model = sizes.model()
    for precision in precisions:
        for memory in memories:
            yield token(sm.from_onnx(model), sizes, precision, memory)


def tables(results: list[dict]) -> str:
    """Return the tables of docs/decoding.md."""
    titles = ("precision", "weights in", "rows", "kernels", "MB", "of weights and caches", "instructions")
    titles += ("registers", "waves", "scratch")
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for each in results:
        of_needed = f"{each['bytes'] / 1e6:.1f} | **{each['of_needed']:.3f}x**"
        code = f"{each['instructions']:,} | {each['most_registers']} | {each['least_waves']} | {each['scratch']}"
        facts = f"| {each['precision']} | {each['memory']} | {each['rows']:,} | {each['kernels']}"
        lines.append(f"{facts} | {of_needed} | {code} |")
    chosen = next((each for each in reversed(results) if each["memory"] == "textures"), None)
    return "\n".join([*lines, "", *_one_by_one(chosen)] if chosen else lines)


def _one_by_one(result: dict) -> Iterator[str]:
    yield "| kernel | rule | launches | MB of all | MB asked of caches | instructions | registers | waves |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for each in result["each"]:
        many = f"{each['launches']} x {each['kernels']}" if each["kernels"] > 1 else each["launches"]
        sizes = f"{each['bytes'] / 1e6:.2f} | {each['asked_bytes'] / 1e6:.2f}"
        counts = " | ".join(", ".join(map(str, each[name])) for name in ("instructions", "registers", "waves"))
        yield f"| `{_short(each['kernel'])}` | {each['rule']} | {many} | {sizes} | {counts} |"


def _short(name: str, most: int = 32) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."


def main() -> int:
    """Measure what the command line asks for, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--memory", nargs="+", choices=list(MEMORY), default=list(MEMORY))
    parser.add_argument("--kernels", action="store_true", help="print each kernel, and keep nothing")
    parser.add_argument("--table", action="store_true", help="print the tables of what was kept")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    if args.table:
        print(tables(json.loads(args.output.read_text(encoding="utf-8"))["results"]))
        return 0
    from smartmem_tvm.mesa_folder import mesa_version
    from smartmem_tvm.whole_file import whole

    results = []
    for rows in args.rows:
        for each in measured(rows, args.layers, args.precisions, args.memory):
            results.append(each)
            print(json.dumps({key: value for key, value in each.items() if key != "each"}), flush=True)
            if args.kernels:
                print("\n".join(_one_by_one(each)), flush=True)
    if not args.kernels:
        with whole(args.output) as path:
            content = {"target": TARGET, "goal": GOAL, "mesa": mesa_version("adreno"), "results": results}
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all(each["of_needed"] <= GOAL for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())

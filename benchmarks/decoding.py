#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token of a Llama of 100 million parameters, by the public interface, beside ONNX Runtime and what memory allows.

python benchmarks/decoding.py                           # caches of 256 and of 2,048 rows, on one thread
python benchmarks/decoding.py --length 128              # the first rows of the caches
python benchmarks/decoding.py --layers 2 --rows 256 --json out.json
python benchmarks/decoding.py --prefill 128 1024 --layers 2   # a prompt at once, at the beginning of a sequence

12 query heads and 4 key heads, 12 layers, float32. All systems run in turns in one process, and each decodes the last
tokens that its caches have room for, where attention reads all rows, or the tokens up to `--length`. ONNX Runtime gets
its caches back by its I/O binding, which copies none of them. The limit is the time in which the weights of a token and
the rows before it can be read: between tokens a loop reads as many bytes in vectors. On one thread, times are processor
time of the calling thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import onnxruntime
import tvm
from decoder_network import ELEMENTS, WHERE, Decoder

import smartmem_tvm as sm
from smartmem_tvm.runtime.speed_kernels import STREAMS, build, loads
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.target import host_target
from smartmem_tvm.tensor_arrays import tensor_of
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tune.host import set_threads, usable_cores


def network(rows: int, layers: int) -> Decoder:
    """Return the network with caches of so many rows."""
    return Decoder(32000, 768, layers, 12, 4, 2048, rows, 1, WHERE)


def other(model: bytes, sizes: Decoder, threads: int):
    """Return ONNX Runtime's step: (token, place) -> the scores of the next token."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(sizes.cache, "float32")) for name in sizes.caches}
    spare = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(sizes.cache, "float32")) for name in sizes.caches}

    def step(token: int, place: int) -> np.ndarray:
        nonlocal held, spare
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([[token]]))
        binding.bind_cpu_input("position_ids", np.array([[place]]))
        for name in sizes.caches:
            binding.bind_ortvalue_input(name, held[name])
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), spare[name])
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        held, spare = spare, held
        return binding.get_outputs()[-1].numpy().reshape(-1)

    return step


class Reader:
    """A loop that reads as many bytes as a token must, in vectors, on the threads of the kernels.

    They are in a file that is mapped, as weights are: in memory with pages of 4 KB the same loop takes 1.45x as long
    (AMD EPYC, 2026-11-30), and would be no limit.
    """

    def __init__(self, nbytes: int, threads: int):
        target = host_target()
        self.chunks = nbytes // (4 * STREAMS * CpuParams.of(target).lanes * threads)
        floats = self.chunks * STREAMS * CpuParams.of(target).lanes * threads
        with tempfile.TemporaryFile() as file:
            np.ones(floats, "float32").tofile(file)
            numbers = np.memmap(file, "float32", "c", 0, (floats,))
        self.arrays = [tensor_of(numbers), tvm.runtime.tensor(np.ones(max(1 << 12, 512 * threads), "float32"))]
        self._run = build({"loads": loads(threads, target)}, target).mod["loads"]

    def __call__(self) -> None:
        """Read once."""
        self._run(*self.arrays, self.chunks, 1)


def measured(rows: int, length: int, layers: int, tokens: int, threads: int) -> dict:
    """Decode the same tokens with both, in turns; return milliseconds and what is written."""
    sizes = network(rows, layers)
    model = sizes.model()
    start = time.perf_counter()
    compiled = sm.compile(sm.from_onnx(model), options=sm.Options(caches=True))
    seconds = time.perf_counter() - start
    theirs, ours = other(model.SerializeToString(), sizes, threads), sm.Decoder(compiled)
    ours._written[0].length = length - tokens - 1  # rows before are zeros for both
    weights = sum(each.nbytes for each in compiled.weights) - sizes.vocabulary * sizes.width * 4  # one row of the table
    row = 4 * len(sizes.caches) * sizes.key_heads * sizes.head
    clock = time.thread_time if threads == 1 else time.perf_counter
    reader = Reader(weights + length * row, threads)
    times: dict[str, list[float]] = {"smartmem": [], "onnxruntime": [], "limit": []}
    token, same = 1, 0
    for place in range(length - tokens - 1, length):
        found = [clock()]
        mine = int(ours.feed([token]).argmax())
        found.append(clock())
        other_one = int(theirs(token, place).argmax())
        found.append(clock())
        reader()
        found.append(clock())
        same, token = same + (mine == other_one), other_one
        if place > length - tokens - 1:  # the first is warm-up
            for name, first, last in zip(times, found, found[1:], strict=False):
                times[name].append((last - first) * 1e3)
    return {
        "rows": rows,
        "length": length,
        "layers": layers,
        "compile_s": seconds,
        "same_ids": same == tokens + 1,
        "read_bytes": weights + length * row,
        "cache_bytes_written": row,
        "cache_bytes": rows * row,
        **{name: {"least_ms": min(each), "median_ms": statistics.median(each)} for name, each in times.items()},
    }


def prefill(tokens: int, layers: int, threads: int, runs: int = 8) -> dict:
    """Read a prompt of so many tokens with both, in turns, into caches with twice as many rows."""
    sizes = Decoder(32000, 768, layers, 12, 4, 2048, 2 * tokens, tokens, ELEMENTS)
    model = sizes.model()
    compiled = sm.compile(sm.from_onnx(model), options=sm.Options(caches=True))
    session = compiled.session()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    ids, places = np.ones((1, tokens), "int64"), np.arange(tokens)[None]
    past = {name: np.zeros(sizes.cache, "float32") for name in sizes.caches}
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {"smartmem": [], "onnxruntime": []}
    for number in range(runs + 1):
        start = clock()
        (mine,) = session.run(ids, places)
        between = clock()
        other_one = theirs.run(["logits"], {"input_ids": ids, "position_ids": places, **past})[0]
        end = clock()
        if number:
            times["smartmem"].append((between - start) * 1e3)
            times["onnxruntime"].append((end - between) * 1e3)
    same = bool((mine.argmax(-1) == other_one.argmax(-1)).all())
    return {"prompt": tokens, "layers": layers, "same_ids": same, **{name: min(each) for name, each in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--length", type=int, help="rows that are taken at the end; by default all")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prefill", type=int, nargs="+", default=[], help="tokens of prompts, in place of decoding")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    threads = set_threads(args.threads)
    for tokens in args.prefill:
        found = prefill(tokens, args.layers, threads)
        print(
            f"{tokens} tokens of prompt, {args.layers} layers: smartmem {found['smartmem']:.1f} ms, onnxruntime "
            f"{found['onnxruntime']:.1f} ms, the least ({found['smartmem'] / found['onnxruntime']:.2f}x); ids "
            f"{'equal' if found['same_ids'] else 'DIFFER'}.",
            flush=True,
        )
    if args.prefill:
        return
    found = [measured(rows, args.length or rows, args.layers, args.tokens, threads) for rows in args.rows]
    for each in found:
        parts = ", ".join(
            f"{name} {each[name]['least_ms']:.2f} ms least, {each[name]['median_ms']:.2f} median "
            f"({each[name]['least_ms'] / each['limit']['least_ms']:.2f}x of the limit, medians "
            f"{each[name]['median_ms'] / each['limit']['median_ms']:.2f}x)"
            for name in ("smartmem", "onnxruntime")
        )
        print(
            f"{each['rows']} rows, {each['length']} taken: {parts}; limit {each['limit']['least_ms']:.2f} ms; ids "
            f"{'equal' if each['same_ids'] else 'DIFFER'}; written to caches: {each['cache_bytes_written']} of "
            f"{each['cache_bytes']} bytes."
        )
    if args.json is not None:
        facts = {"machine": machine(usable_cores()), "threads": threads, "date": str(date.today())}
        Path(args.json).write_text(json.dumps({**facts, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token of a Llama of a billion parameters in half precision on CUDA, beside a copy's bandwidth and torch.

python benchmarks/decoding_gpu.py                       # 256 and 2,048 rows, then torch with a static cache
python benchmarks/decoding_gpu.py --layers 2 --rows 256 --no-torch
python benchmarks/decoding_gpu.py --small --target opencl    # tries the script out

Widths of Llama 3.2 1B: 2,048 wide, 32 query and 8 key heads of 64, 8,192 between the products of a gated layer, 16
layers; a vocabulary of 32,000, and weights drawn at random. Each row of the output is one JSON object, printed as soon
as it is known; a part that fails prints its error and the others go on. The limit is the time in which a copy on the
device reads the weights of a token and the rows of the caches. A row `kernels` has what torch's profiler sees of a few
tokens: launches of a token and microseconds of each kernel, their sum, and the time from the first to the last. torch
runs transformers' Llama with a static cache, compiled with mode ``reduce-overhead``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable

import numpy as np

LARGE, SMALL = (32000, 2048, 32, 8, 8192), (500, 128, 4, 2, 256)
"""Vocabulary, width, query and key heads, and numbers between the products of a gated layer."""
_SECONDS = 60  # that a row's tokens may take


def say(**facts: object) -> None:
    """Print one row."""
    print(json.dumps(facts), flush=True)


def tried(row: str, work: Callable[[], dict]) -> dict:
    """Print what a part returns, or why it failed."""
    start = time.perf_counter()
    try:
        found = work()
    except Exception as error:
        where = traceback.format_exc(limit=-3)
        found = {"error": f"{type(error).__name__}: {error}"[:400], "where": where[-600:]}
    say(row=row, seconds=round(time.perf_counter() - start, 1), **found)
    return found


def timed(step: Callable[[int], object], tokens: int, sync: Callable[[], None]) -> dict:
    """Return the least and the median milliseconds of a token, each until the device is done."""
    times, begin = [], time.perf_counter()
    for number in range(tokens):
        start = time.perf_counter()
        step(number)
        sync()
        times.append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() - begin > _SECONDS:
            break
    times = times[len(times) // 4 :]  # recording and clocks
    median = statistics.median(times)
    return {"least_ms": min(times), "median_ms": median, "tokens_per_s": 1e3 / median, "tokens": len(times)}


def bandwidth() -> dict:
    """Return the bytes a second that a copy on the device reads and writes."""
    import tvm

    device, size = tvm.cuda(0), 1 << 30
    one, other = (tvm.runtime.empty((size // 4,), "float32", device) for _ in range(2))
    one.copyfrom(np.zeros(size // 4, "float32"))
    times = []
    for _ in range(8):
        device.sync()
        start = time.perf_counter()
        for _ in range(4):
            one.copyto(other)
        device.sync()
        times.append((time.perf_counter() - start) / 4)
    return {"copy_gb_s": 2 * size / min(times) / 1e9}


def network(rows: int, layers: int, widths: tuple[int, ...]):
    """Return the network for one token, with caches of so many rows, as a model in memory.

    Weights are different parts of one list of random numbers, as drawing a billion takes a quarter of a minute. The
    checker of ONNX does not take more than two gigabytes.
    """
    import decoder_network
    import onnx

    vocabulary, width, heads, key_heads, inner = widths
    sizes = decoder_network.Decoder(vocabulary, width, layers, heads, key_heads, inner, rows, 1, decoder_network.WHERE)
    writer = decoder_network._Writer(sizes)
    pool, taken = writer.random.standard_normal(1 << 27, "float32"), 0

    def matrix(height: int, width: int) -> str:
        nonlocal taken
        taken = (taken + 7919) % (len(pool) - height * width)
        return writer.constant((pool[taken : taken + height * width] / height**0.5).reshape(height, width))

    writer.matrix = matrix
    check, onnx.checker.check_model = onnx.checker.check_model, lambda _: None
    try:
        return writer.model()
    finally:
        onnx.checker.check_model = check


def ours(rows: int, layers: int, tokens: int, copy: float | None, target: str, widths: tuple[int, ...]) -> dict:
    """Compile the network and decode the last tokens that its caches have room for."""
    import smartmem_tvm as sm

    start = time.perf_counter()
    mod = sm.from_onnx(network(rows, layers, widths))
    imported = time.perf_counter()
    compiled = sm.compile(mod, target, sm.Options(caches=True, precision="half" if target == "cuda" else "float32"))
    done = time.perf_counter()
    decoder = sm.Decoder(compiled)
    # The table of tokens is not read, but for a row.
    read = [each.tensor for each in compiled.weights if tuple(each.tensor.shape) != tuple(widths[:2])]
    weights = sum(math.prod(each.shape) * np.dtype(str(each.dtype)).itemsize for each in read)
    caches = sum(tensor.numpy().nbytes for tensor in decoder._session.caches.values())
    decoder._written[0].length = rows - tokens - 1
    found = timed(lambda _: decoder.feed([1]), tokens, lambda: None)  # `feed` returns scores on the host
    found |= in_a_row(decoder)
    facts = {"rows": rows, "layers": layers, "weight_bytes": weights, "cache_bytes": caches, **found}
    facts |= {"import_s": imported - start, "compile_s": done - imported, "graphs": compiled.kernels_per_graph}
    if copy:
        limit = (weights + caches) / copy / 1e6
        facts |= {"limit_ms": limit, "over_limit": found["median_ms"] / limit}
    if target == "cuda":
        decoder._written[0].length = rows - tokens - 1
        tried(
            "kernels", lambda: {"rows": rows, "layers": layers, **profiled(lambda: decoder.feed([1]), min(8, tokens))}
        )
    return facts


def in_a_row(decoder) -> dict:
    """Return the milliseconds of one of a hundred calls whose scores are not waited for; least of five.

    They write the same token again and again.
    """
    from smartmem_tvm.deploy.host_call import HostCall

    call = next((each for _, each in decoder._bound.values() if isinstance(each, HostCall)), None)
    if call is None:
        return {}
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(100):
            call._call(*call._tensors)
        call._device.sync()
        times.append((time.perf_counter() - start) * 10)
    return {"in_a_row_ms": min(times)}


def right(target: str, precision: str, chains: bool) -> dict:
    """Return how far the scores of some tokens are from those of a CPU, in float32, beside the largest.

    Parameters
    ----------
    chains : bool
        Whether one launch may do all small kernels, as it does in a network as small as this one.
    """
    import smartmem_tvm as sm

    mod = sm.from_onnx(network(256, 2, SMALL))
    exact = sm.Decoder(sm.compile(mod, options=sm.Options(caches=True)))
    options = sm.Options(caches=True, precision=precision, merge_chains=chains)
    found = sm.Decoder(sm.compile(mod, target, options))
    apart = 0.0
    for token in range(3, 160):
        one, other = exact.feed([token]), found.feed([token])
        apart = max(apart, float(np.abs(one - other).max() / np.abs(one).max()))
    near = 1e-5 if precision == "float32" else 2e-2
    return {"precision": precision, "chains": chains, "tokens": exact.length, "apart": apart, "right": apart < near}


def profiled(step: Callable[[], object], times: int) -> dict:
    """Return what torch's profiler sees of a step: launches and microseconds of each kernel, and of all of them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            step()
        torch.cuda.synchronize()
    events = [each for each in seen.events() if str(each.device_type).endswith("CUDA")]
    each: dict[str, list[float]] = {}
    for event in events:
        each.setdefault(event.name[:80], []).append(event.time_range.end - event.time_range.start)
    begin = min(event.time_range.start for event in events)
    span = (max(event.time_range.end for event in events) - begin) / times
    rows = [
        {"kernel": name, "of_a_token": len(us) / times, "us": round(statistics.median(us), 2), "sum": sum(us) / times}
        for name, us in each.items()
    ]
    rows.sort(key=lambda row: -row["sum"])
    for row in rows:
        row["sum"] = round(row["sum"], 1)
    return {"kernels_us": round(sum(map(sum, each.values())) / times, 1), "span_us": round(span, 1), "each": rows}


def theirs(rows: int, layers: int, tokens: int, copy: float | None, widths: tuple[int, ...], way: str) -> dict:
    """Decode with transformers' Llama and a static cache.

    The prompt is read by the model as it is, which makes the caches: a compiled call would make them anew in its graph.

    Parameters
    ----------
    way : str
        ``compile``: torch.compile with mode ``reduce-overhead``. ``capture``: torch.compile without CUDA graphs, and a
        graph that is recorded here; a replay adds one to the length in the cache. ``eager``: such a graph of the model
        as it is.
    """
    import torch
    import transformers
    from transformers import StaticCache

    vocabulary, width, heads, key_heads, inner = widths
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=max(rows, 4096),
    )
    place = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(place):
        model = transformers.LlamaForCausalLM(config).to(torch.float16 if place == "cuda" else torch.float32).eval()
    cache = StaticCache(config=config, max_cache_len=rows)
    before = 8 if way == "compile" else 12  # runs before those that count
    token = torch.ones(1, 1, dtype=torch.int64, device=place)

    def run(step: Callable) -> object:
        with torch.no_grad():
            return step(token, past_key_values=cache, use_cache=True).logits

    with torch.no_grad():
        model(torch.ones(1, rows - tokens - before - 1, dtype=torch.int64, device=place), past_key_values=cache)
    sync = torch.cuda.synchronize if place == "cuda" else lambda: None
    if way == "compile":
        compiled = torch.compile(model.forward, mode="reduce-overhead")

        def one() -> object:
            torch.compiler.cudagraph_mark_step_begin()
            return run(compiled)

        for _ in range(before):
            one()
    else:
        compiled = torch.compile(model.forward) if way == "capture" else model.forward
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(before):
                run(compiled)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(compiled)
        one = graph.replay
    sync()
    half = tokens // 2
    found = timed(lambda _: one(), half, sync)
    start = time.perf_counter()
    for _ in range(half):
        one()
    sync()
    found["in_a_row_ms"] = (time.perf_counter() - start) / half * 1e3
    length = int(cache.get_seq_length())
    weights = sum(each.numel() * each.element_size() for each in model.parameters()) - vocabulary * width * 2
    caches = 2 * layers * rows * key_heads * (width // heads) * 2
    facts = {"rows": rows, "layers": layers, "way": way, "length": length, "weight_bytes": weights}
    facts |= {"torch": torch.__version__, "transformers": transformers.__version__, **found}
    return facts | ({"over_limit": found["median_ms"] / ((weights + caches) / copy / 1e6)} if copy else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--target", default="cuda", help="another one tries this script out, in float32")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--right", action="store_true", help="only compare a small network's scores with a CPU's")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the script on another device")
    args = parser.parse_args()
    widths = SMALL if args.small else LARGE
    if args.right:
        for precision in ("float32", "half") if args.target == "cuda" else ("float32",):
            for chains in (True, False):
                tried("right", lambda precision=precision, chains=chains: right(args.target, precision, chains))
        return
    copy = tried("copy", bandwidth).get("copy_gb_s") if args.target == "cuda" else None

    def few(rows: int) -> int:
        return min(args.tokens, rows // 2)

    for rows in args.rows:
        tried("smartmem", lambda rows=rows: ours(rows, args.layers, few(rows), copy, args.target, widths))
    for rows in args.rows if not args.no_torch else ():
        for way in ("compile", "capture", "eager"):
            tried("torch", lambda rows=rows, way=way: theirs(rows, args.layers, few(rows), copy, widths, way))


if __name__ == "__main__":
    main()

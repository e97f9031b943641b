#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token of a Llama of a billion parameters in half precision on CUDA, beside a copy's bandwidth and torch.

python benchmarks/decoding_gpu.py                       # 256 and 2,048 rows, then torch with a static cache
python benchmarks/decoding_gpu.py --layers 2 --rows 256 --no-torch

Widths of Llama 3.2 1B: 2,048 wide, 32 query and 8 key heads of 64, 8,192 between the products of a gated layer, 16
layers; a vocabulary of 32,000, and weights drawn at random. Each row of the output is one JSON object, printed as soon
as it is known; a part that fails prints its error and the others go on. The limit is the time in which a copy on the
device reads the weights of a token and the rows of the caches. torch runs transformers' Llama with a static cache,
compiled with mode ``reduce-overhead``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable

import numpy as np

WIDTH, HEADS, KEY_HEADS, INNER, VOCABULARY = 2048, 32, 8, 8192, 32000
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


def network(rows: int, layers: int):
    """Return the network for one token, with caches of so many rows, as a model in memory.

    Weights are different parts of one list of random numbers, as drawing a billion takes a quarter of a minute. The
    checker of ONNX does not take more than two gigabytes.
    """
    import decoder_network
    import onnx

    sizes = decoder_network.Decoder(VOCABULARY, WIDTH, layers, HEADS, KEY_HEADS, INNER, rows, 1, decoder_network.WHERE)
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


def ours(rows: int, layers: int, tokens: int, copy: float | None, target: str) -> dict:
    """Compile the network and decode the last tokens that its caches have room for."""
    import smartmem_tvm as sm

    start = time.perf_counter()
    mod = sm.from_onnx(network(rows, layers))
    imported = time.perf_counter()
    compiled = sm.compile(mod, target, sm.Options(caches=True, precision="half" if target == "cuda" else "float32"))
    done = time.perf_counter()
    decoder = sm.Decoder(compiled)
    weights = sum(each.nbytes for each in compiled.weights) - VOCABULARY * WIDTH * 2
    caches = sum(tensor.numpy().nbytes for tensor in decoder._session.caches.values())
    decoder._length = rows - tokens - 1
    found = timed(lambda _: decoder.feed([1]), tokens, lambda: None)  # `feed` returns scores on the host
    facts = {"rows": rows, "layers": layers, "weight_bytes": weights, "cache_bytes": caches, **found}
    facts |= {"import_s": imported - start, "compile_s": done - imported, "graphs": compiled.kernels_per_graph}
    if copy:
        limit = (weights + caches) / copy / 1e6
        facts |= {"limit_ms": limit, "over_limit": found["median_ms"] / limit}
    return facts


def theirs(rows: int, layers: int, tokens: int, copy: float | None) -> dict:
    """Decode with transformers' Llama, a static cache, and torch.compile."""
    import torch
    import transformers
    from transformers import StaticCache

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=max(rows, 4096),
    )
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.float16).eval()
    kinds = {"max_cache_len": rows}
    try:
        cache = StaticCache(config=config, **kinds)
    except TypeError:
        cache = StaticCache(config=config, max_batch_size=1, device="cuda", dtype=torch.float16, **kinds)
    step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=False)
    token = torch.ones(1, 1, dtype=torch.int64, device="cuda")

    def one(number: int) -> None:
        place = torch.tensor([rows - tokens - 1 + number], device="cuda")
        with torch.no_grad():
            step(token, position_ids=place[None], cache_position=place, past_key_values=cache, use_cache=True)

    for number in range(4):
        one(number)
    torch.cuda.synchronize()
    found = timed(one, tokens, torch.cuda.synchronize)
    weights = sum(each.numel() * each.element_size() for each in model.parameters()) - VOCABULARY * WIDTH * 2
    facts = {"rows": rows, "layers": layers, "weight_bytes": weights, "torch": torch.__version__, **found}
    return facts | ({"over_limit_of_weights": found["median_ms"] / (weights / copy / 1e6)} if copy else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--target", default="cuda", help="another one tries this script out, in float32")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    copy = tried("copy", bandwidth).get("copy_gb_s")
    for rows in args.rows:
        tried("smartmem", lambda rows=rows: ours(rows, args.layers, min(args.tokens, rows // 2), copy, args.target))
    for rows in args.rows if not args.no_torch else ():
        tried("torch", lambda rows=rows: theirs(rows, args.layers, min(args.tokens, rows // 2), copy))


if __name__ == "__main__":
    main()

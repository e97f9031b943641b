#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoders of transformers, exported by torch with caches that grow, beside ONNX Runtime.

pip install torch transformers onnx onnxscript onnxruntime
python benchmarks/exported_decoders.py                        # seven networks, both exporters of torch
python benchmarks/exported_decoders.py --networks gpt2 --exporters dynamo
python benchmarks/exported_decoders.py --networks pythia-160m --exporters dynamo --rows 256 --times

Networks are small, with random weights, and written as Optimum names them: ``input_ids``, ``attention_mask``,
``position_ids``, ``past_key_values.0.key``. Each is compiled for 1 and 4 tokens with caches of `--rows` rows, and
writes tokens after a prompt; ONNX Runtime runs the file with caches that grow. Their ids should be the same. A network
of the size of Pythia-160M is there by name, and `--times` measures tokens of both in turns, in processor time of one
thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers
from transformers.cache_utils import DynamicCache

import smartmem_tvm as sm
from smartmem_tvm.tune.host import set_threads

SIZES = {"vocab_size": 61, "max_position_embeddings": 64, "num_hidden_layers": 2, "intermediate_size": 40}
LLAMA = {**SIZES, "hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2}
WINDOW = {**LLAMA, "sliding_window": 6}
GEMMA = {**WINDOW, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]}
NETWORKS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**WINDOW)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**GEMMA)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**GEMMA)),
    "gpt-neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**SIZES, hidden_size=24, num_attention_heads=3)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=4, n_positions=64)
    ),
}
LARGE = {
    "pythia-160m": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=50304,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            max_position_embeddings=2048,
        )
    )
}
"""Networks that take minutes."""
PROMPT = [3, 1, 4, 1, 5, 9]


class Wrapped(torch.nn.Module):
    """A network whose caches are arguments and results: all rows, also of layers with a window, which masks show."""

    def __init__(self, network: torch.nn.Module):
        super().__init__()
        self.network = network

    def forward(self, input_ids, attention_mask, position_ids, *past):
        """Return scores, and each cache with its new rows."""
        cache = DynamicCache(list(zip(past[::2], past[1::2])))
        named = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": cache}
        found = self.network(input_ids=input_ids, use_cache=True, **named)
        return found.logits, *(each for layer in found.past_key_values.layers for each in (layer.keys, layer.values))


def export(name: str, exporter: str, folder: Path) -> Path:
    """Export a network and return the file."""
    torch.manual_seed(0)
    network = (NETWORKS | LARGE)[name]().eval()
    config, path = network.config, folder / f"{name}_{exporter}.onnx"
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = range(config.num_hidden_layers)
    past = [torch.randn(1, heads, 3, head) for _ in layers for _ in "kv"]
    arguments = (
        torch.ones(1, 2, dtype=torch.int64),
        torch.ones(1, 5, dtype=torch.int64),
        torch.arange(3, 5)[None],
        *past,
    )
    caches = [f"{layer}.{part}" for layer in layers for part in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{each}" for each in caches)]
    names = {"input_names": inputs, "output_names": ["logits", *(f"present.{each}" for each in caches)]}
    if exporter == "dynamo":
        open_size = torch.export.Dim.DYNAMIC
        shapes = ({1: open_size},) * 3 + (tuple({2: open_size} for _ in past),)
        torch.onnx.export(Wrapped(network), arguments, dynamo=True, dynamic_shapes=shapes, **names).save(path)
        return path
    axes = {each: {0: "batch_size", 1: "sequence_length"} for each in ("input_ids", "position_ids")}
    axes["attention_mask"] = {0: "batch_size", 1: "past_sequence_length + sequence_length"}
    axes |= {each: {0: "batch_size", 2: "past_sequence_length"} for each in inputs[3:]}
    torch.onnx.export(Wrapped(network), arguments, path, dynamo=False, dynamic_axes=axes, opset_version=17, **names)
    return path


def greedy(path: Path, tokens: int, seconds: list[float]) -> Iterator[int]:
    """Yield what ONNX Runtime writes after the prompt, and add the processor time of each run."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    shapes = {each.name: each.shape for each in session.get_inputs()}
    past = {name: np.zeros((1, shape[1], 0, shape[3]), "float32") for name, shape in shapes.items() if "past" in name}
    feed, length = PROMPT, 0
    for _ in range(tokens):
        whole = length + len(feed)
        given = {"input_ids": np.array([feed]), "position_ids": np.arange(length, whole)[None], **past}
        given["attention_mask"] = np.ones((1, whole), "int64")
        start = time.thread_time()
        logits, *now = session.run(None, {name: array for name, array in given.items() if name in shapes})
        seconds.append(time.thread_time() - start)
        past, length = dict(zip(past, now)), whole
        feed = [int(logits[0, -1].argmax())]
        yield feed[0]


def timed(decoder: sm.Decoder, tokens: int, seconds: list[float]) -> Iterator[int]:
    """Yield what the decoder writes, and add the processor time of each token."""
    steps = decoder.tokens(PROMPT, tokens)
    while True:
        start = time.thread_time()
        found = next(steps, None)
        seconds.append(time.thread_time() - start)
        if found is None:
            return
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS | LARGE, default=list(NETWORKS))
    parser.add_argument("--exporters", nargs="+", choices=("dynamo", "script"), default=["dynamo", "script"])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--times", action="store_true", help="milliseconds of a token, on one thread")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(1)
    for name in args.networks:
        for exporter in args.exporters:
            with tempfile.TemporaryDirectory() as folder:
                path = export(name, exporter, Path(folder))
                start = time.process_time()
                mod = sm.from_onnx(path, [{"input_ids": (1, 1)}, {"input_ids": (1, 4)}], rows=args.rows)
                read = time.process_time() - start
                decoder = sm.Decoder(sm.compile(mod, options=sm.Options(caches=True)))
                ours, theirs = [], []
                pairs = zip(timed(decoder, args.tokens, ours), greedy(path, args.tokens, theirs), strict=True)
                same = all(one == other for one, other in pairs)
                facts = {"caches": len(decoder._session.caches), "rows": decoder.capacity, "import_s": round(read, 1)}
                if args.times:
                    facts |= {
                        name: {"least_ms": min(each[1:]) * 1e3, "median_ms": statistics.median(each[1:]) * 1e3}
                        for name, each in (("smartmem", ours[: args.tokens]), ("onnxruntime", theirs))
                    }
                print(json.dumps({"network": name, "exporter": exporter, "same_ids": same, **facts}), flush=True)


if __name__ == "__main__":
    main()

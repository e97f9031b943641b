# SPDX-License-Identifier: Apache-2.0
"""``smartmem generate``: token ids that follow a prompt, by a folder that was compiled with caches."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from ..peak_memory import peak_mb
from ..tune.host import set_threads
from .argument_types import positive, seed
from .console import Result, peak_text, step
from .model import add_threads

if TYPE_CHECKING:
    from rich.console import Console

NAME = "generate"
HELP = "write the tokens that follow a prompt, with a language model that was compiled with caches"
EXAMPLE = """\
  smartmem generate llama --prompt-ids 1,2,3 --tokens 64
  smartmem generate llama --prompt-ids 1,2,3 --tokens 64 --temperature 0.8 --top-k 40 --top-p 0.95 --seed 7

  smartmem generate batch --prompt-ids 1,2,3 --prompt-ids 4,5 --tokens 64    several sequences at once

  with folders made by:
  smartmem compile llama.onnx -o llama --cache auto \\
      --shape 'input_ids:1,{1,128}' --shape 'position_ids:1,{1,128}'
  smartmem compile llama.onnx -o batch --cache auto --shape 'input_ids:2,{1,128}' --shape 'position_ids:2,{1,128}'

Ids go in and come out: the tokenizer is yours. Without a temperature the token with the largest score is taken. The
inputs of the model are known by the names that exporters use; name others with --ids, --positions and --mask."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("folder", metavar="DIR", help="a folder of `smartmem compile --cache`")
    text = "ids of tokens with commas between; once more for each further sequence of a model with a batch"
    parser.add_argument("--prompt-ids", required=True, action="append", metavar="IDS", help=text)
    parser.add_argument("--tokens", type=positive, required=True, metavar="N", help="the most tokens to write")
    text = "what scores are divided by before they are probabilities (default: 0, which takes the largest)"
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help=text)
    text = "choose from the K tokens with the largest scores (default: 0, all)"
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help=text)
    text = "choose from the most probable tokens that together have probability P (default: 1)"
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help=text)
    parser.add_argument("--seed", type=seed, default=0, help="of the random numbers (default: 0)")
    parser.add_argument("--stop", default="", metavar="IDS", help="tokens that end the sequence")
    for role, what in (("ids", "tokens"), ("positions", "places of the tokens"), ("mask", "mask of the rows seen")):
        parser.add_argument(f"--{role}", metavar="NAME", help=f"the input that takes the {what}")
    parser.add_argument("--logits", metavar="NAME", help="the output with the scores")
    add_threads(parser)


def execute(args: argparse.Namespace) -> Result:
    """Generate, and time each token."""
    from ..deploy.decoder import Decoder, of_each

    prompts = [_ids("--prompt-ids", each) for each in args.prompt_ids]
    stop = _ids("--stop", args.stop) if args.stop else []
    prompt = prompts if len(prompts) > 1 else prompts[0]
    threads = set_threads(args.threads)
    with step(f"Loading {args.folder}"):
        decoder = Decoder(Path(args.folder), args.ids, args.positions, args.mask, args.logits)
    steps, times = [], [time.perf_counter()]
    with step("Generating"):
        for token in decoder.tokens(
            prompt, args.tokens, args.temperature, args.top_k, args.top_p, args.seed, frozenset(stop)
        ):
            steps.append(token)
            times.append(time.perf_counter())
    seconds = np.diff(times)
    data = {
        "folder": args.folder,
        "prompt_ids": prompt,
        "ids": of_each(steps) if len(prompts) > 1 else steps,
        "capacity": decoder.capacity,
        "threads": threads,
        "prefill_ms": float(seconds[0]) * 1e3,
        "token_ms": float(np.median(seconds[1:])) * 1e3 if len(steps) > 1 else None,
        "peak_mb": peak_mb(),
    }
    return Result(data, lambda console: _render(console, data))


def _ids(option: str, text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text} must be whole numbers with commas between, as in {option} 1,2,3.") from None


def _render(console: Console, data: dict) -> None:
    each = f", then {data['token_ms']:.2f} ms a token (the median)" if data["token_ms"] is not None else ""
    several = isinstance(data["ids"][0], list)
    for ids in data["ids"] if several else [data["ids"]]:
        console.print(",".join(map(str, ids)))
    counts = " + ".join(str(len(each)) for each in (data["prompt_ids"] if several else [data["prompt_ids"]]))
    console.print(
        f"{counts} tokens of prompt in {data['prefill_ms']:.2f} ms{each}. Rows of the caches: "
        f"{data['capacity']}. Threads: {data['threads']}, {peak_text(data)}."
    )

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token of the Llama of `decoding.py` beside llama.cpp, onnxruntime-genai and ONNX Runtime, in one process.

pip install onnxruntime-genai xllamacpp "smartmem-tvm[gguf]"
python benchmarks/decoding_peers.py --json out.json       # caches of 256 and of 2,048 rows, weights in float32
python benchmarks/decoding_peers.py --weights q4_0        # in four bits, ours and llama.cpp from the same GGUF file
python benchmarks/decoding_peers.py --layers 2 --rows 256 --work FOLDER   # files are kept, and used again
python benchmarks/decoding_peers.py --memory              # a folder's size, and the peaks of 2,048 tokens

All have one thread and the same weights, read the same prompt, and write the last tokens that the caches have room for,
in turns of some tokens each. All files are read from the disk. ONNX Runtime gets the file that this package compiles,
and its caches back by I/O binding; `decoder_files.py` writes what the others read. Times are processor time of the
whole process. The limit is the time in which the weights of a token and the rows before it can be read, as in
`decoding.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import onnx
from decoder_files import FLOAT32, Q4_0, WEIGHTS, row_bytes, token_bytes, write_genai, write_gguf
from decoder_network import TENSOR, Decoder

TURN = 8  # tokens of a system in a turn. Chosen: a request of llama.cpp's server takes as long as one token to begin.
PROMPT = 64  # tokens of a prompt that are read at once. Chosen: as phones do; the folder's second size.
_NEWLINE = "\n"


def network(rows: int, layers: int) -> Decoder:
    """Return the network with caches of so many rows."""
    return Decoder(32000, 768, layers, 12, 4, 2048, rows, "tokens", TENSOR)


class Stepwise:
    """A system that takes tokens and gives scores."""

    def begin(self, prompt: list[int]) -> None:
        """Read a prompt, at the beginning of a sequence."""
        for at in range(0, len(prompt), PROMPT):
            self.next = self.step(prompt[at : at + PROMPT], at)
        self.place = len(prompt)

    def write(self, count: int) -> tuple[list[int], list[float]]:
        """Return tokens, and seconds of each."""
        found, seconds = [], []
        for _ in range(count):
            start = time.process_time()
            found.append(self.next)
            self.next = self.step([self.next], self.place)
            seconds.append(time.process_time() - start)
            self.place += 1
        return found, seconds

    def step(self, ids: list[int], place: int) -> int:
        """Append tokens at a place of the sequence; return the token with the largest score."""
        raise NotImplementedError


class Ours(Stepwise):
    """`Decoder` of this package."""

    def __init__(self, sizes: Decoder, work: Path, weights: str, *options: str):
        import smartmem_tvm as sm

        self.decoder = sm.Decoder(compiled(sizes, work, weights, *options))

    def begin(self, prompt: list[int]) -> None:
        """Read a prompt."""
        self.decoder.reset()
        super().begin(prompt)

    def step(self, ids: list[int], place: int) -> int:
        """Append tokens."""
        return int(self.decoder.feed(ids).argmax())


class OnnxRuntime(Stepwise):
    """ONNX Runtime: results of a run become the caches of the next one, without a copy by this program."""

    def __init__(self, sizes: Decoder, work: Path):
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(onnx_file(sizes, work), settings, ["CPUExecutionProvider"])
        make = onnxruntime.OrtValue.ortvalue_from_numpy
        self.held, self.spare = ({n: make(np.zeros(sizes.cache, "float32")) for n in sizes.caches} for _ in range(2))

    def step(self, ids: list[int], place: int) -> int:
        """Append tokens."""
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([ids]))
        binding.bind_cpu_input("position_ids", np.arange(place, place + len(ids))[None])
        binding.bind_output("logits")
        for name in self.held:
            binding.bind_ortvalue_input(name, self.held[name])
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), self.spare[name])
        self.session.run_with_iobinding(binding)
        self.held, self.spare = self.spare, self.held
        return int(binding.get_outputs()[0].numpy()[0, -1].argmax())


class Genai:
    """onnxruntime-genai."""

    def __init__(self, sizes: Decoder, work: Path, weights: str):
        import onnxruntime_genai

        self.package, self.rows, folder = onnxruntime_genai, sizes.capacity, work / f"genai_{weights}"
        if not folder.exists():
            write_genai(sizes, folder, weights)
        self.model = onnxruntime_genai.Model(str(from_disk(folder)))

    def begin(self, prompt: list[int]) -> None:
        """Read a prompt."""
        params = self.package.GeneratorParams(self.model)
        params.set_search_options(max_length=self.rows, do_sample=False)
        self.generator = self.package.Generator(self.model, params)
        self.generator.append_tokens(np.array([prompt], "int32"))

    def write(self, count: int) -> tuple[list[int], list[float]]:
        """Return tokens and seconds of each."""
        found, seconds = [], []
        for _ in range(count):
            start = time.process_time()
            self.generator.generate_next_token()
            found.append(int(self.generator.get_next_tokens()[0]))
            seconds.append(time.process_time() - start)
        return found, seconds


class LlamaCpp:
    """llama.cpp by its server, without HTTP."""

    def __init__(self, sizes: Decoder, work: Path, weights: str, flash: bool):
        import xllamacpp

        params, kind = xllamacpp.CommonParams(), xllamacpp.llama_flash_attn_type
        params.model.path, params.n_ctx = str(gguf_file(sizes, work, weights)), sizes.capacity
        params.n_parallel, params.warmup = 1, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        names = {True: "LLAMA_FLASH_ATTN_TYPE_ENABLED", False: "LLAMA_FLASH_ATTN_TYPE_DISABLED"}
        params.flash_attn_type = getattr(kind, names[flash])
        self.server, self.ids = xllamacpp.Server(params), []

    def begin(self, prompt: list[int]) -> None:
        """Read a prompt: all but its last token are kept for the next requests."""
        self.ids = list(prompt)
        self._asked(1)

    def write(self, count: int) -> tuple[list[int], list[float]]:
        """Return tokens, and seconds of one: answers come late on a busy machine, so of two requests' difference."""
        one, _ = self._asked(1)
        several, found = self._asked(count)
        self.ids += found
        return found, [0.0, (several - one) / (count - 1)]

    def _asked(self, count: int) -> tuple[float, list[int]]:
        """Return the seconds of a request, and its tokens."""
        found = []

        def take(data: dict) -> None:
            text = data["choices"][0]["text"]  # the name of the token, as `write_gguf` gives it
            found.append(int(text[1:]) if text[:1] == "t" and text[1:].isdigit() else -1)

        request = {"prompt": self.ids, "n_predict": count, "temperature": 0, "cache_prompt": True, "stream": True}
        start = time.process_time()
        self.server.handle_completions({**request, "ignore_eos": True}, take)
        return time.process_time() - start, found[:count]


SYSTEMS: dict[str, Callable] = {
    "smartmem": lambda sizes, work, weights: Ours(sizes, work, weights),
    "smartmem, rows in bytes": lambda sizes, work, weights: Ours(sizes, work, weights, "--activations", "int8"),
    "onnxruntime": lambda sizes, work, _: OnnxRuntime(sizes, work),
    "onnxruntime-genai": Genai,
    "llama.cpp": lambda sizes, work, weights: LlamaCpp(sizes, work, weights, flash=False),
    "llama.cpp, flash attention": lambda sizes, work, weights: LlamaCpp(sizes, work, weights, flash=True),
}
_NOT_IN = {FLOAT32: {"smartmem, rows in bytes"}, Q4_0: {"onnxruntime"}}
"""Systems that these weights leave out: bytes are for codes, and ONNX Runtime's file is in floats."""


def from_disk(path: Path) -> Path:
    """Return a file or folder that the next reader gets from the disk, as after a restart.

    Linux keeps a file that was just written in pages as small as the writes were, in which it is read up to 1.4x as
    slowly.
    """
    for each in path.rglob("*") if path.is_dir() else [path]:
        with each.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def onnx_file(sizes: Decoder, work: Path) -> Path:
    """Return the network as an ONNX file."""
    path = work / "network.onnx"
    if not path.exists():
        onnx.save(sizes.model(), path)
    return from_disk(path)


def gguf_file(sizes: Decoder, work: Path, weights: str) -> Path:
    """Return the network as a GGUF file."""
    path = work / f"network_{weights}.gguf"
    if not path.exists():
        write_gguf(sizes, path, weights)
    return from_disk(path)


def compiled(sizes: Decoder, work: Path, weights: str, *options: str) -> Path:
    """Compile the network with the command line, for one token and for prompts; return the folder."""
    from smartmem_tvm.cli import main

    folder = work / "_".join(["ours", weights, *(each.strip("-") for each in options)])
    if folder.exists():
        return from_disk(folder)
    shapes = [f"{name}:1,{{1,{PROMPT}}}" for name in ("input_ids", "position_ids")]
    path = onnx_file(sizes, work) if weights == FLOAT32 else gguf_file(sizes, work, weights)
    if weights != FLOAT32:
        shapes.append(f"{sizes.caches[0]}:{','.join(map(str, sizes.cache))}")
    words = [word for each in shapes for word in ("--shape", each)]
    assert main(["compile", str(path), "-o", str(folder), "--cache", "auto", *words, *options]) == 0
    return from_disk(folder)


def measured(sizes: Decoder, weights: str, tokens: int, work: Path, names: Sequence[str]) -> dict:
    """Write the last tokens of caches with these systems, in turns; return milliseconds."""
    from decoding import Reader

    systems = {name: SYSTEMS[name](sizes, work, weights) for name in names}
    prompt = np.random.default_rng(0).integers(300, sizes.vocabulary, sizes.capacity - tokens - 2).tolist()
    for each in systems.values():
        each.begin(prompt)
    nbytes = token_bytes(sizes, weights) + sizes.capacity * row_bytes(sizes)
    reader = Reader(nbytes, 1)
    found: dict[str, list[int]] = {name: [] for name in systems}
    times: dict[str, list[float]] = {name: [] for name in (*systems, "limit")}
    for _ in range(tokens // TURN):
        for name, each in systems.items():
            ids, seconds = each.write(TURN)
            found[name] += ids
            times[name] += seconds[1:]
        for _ in range(TURN - 1):
            start = time.process_time()
            reader()
            times["limit"].append(time.process_time() - start)
    first = next(iter(found.values()))
    return {
        "rows": sizes.capacity,
        "layers": sizes.layers,
        "weights": weights,
        "tokens": tokens,
        "same_ids": {name: ids == first for name, ids in found.items()},
        "read_bytes": nbytes,
        **{name: _summary(each, times["limit"]) for name, each in times.items()},
    }


def _summary(seconds: list[float], limit: list[float]) -> dict[str, float]:
    least, median = min(seconds), statistics.median(seconds)
    return {
        "least_ms": round(least * 1e3, 2),
        "median_ms": round(median * 1e3, 2),
        "of_limit": round(least / min(limit), 3),
        "median_of_limit": round(median / statistics.median(limit), 3),
    }


def memory(sizes: Decoder, work: Path) -> dict:
    """Return the bytes of a compiled folder, and the peaks of processes that fill its caches, with Python and without.

    The prompt is no multiple of the larger size, so that it is padded, and padding is tested.
    """
    folder = compiled(sizes, work, FLOAT32)
    weights = json.loads((folder / "manifest.json").read_text())["memory_bytes"]["weights"]
    of_folder = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    caches, numbers = row_bytes(sizes) * sizes.capacity, _parameters(sizes)
    child = _json_of(sys.executable, __file__, "--fill", str(folder))
    ids = ",".join(map(str, _LONG_PROMPT))
    tokens = str(sizes.capacity - len(_LONG_PROMPT))
    words = ("model", "--prompt-ids", ids, "--tokens", tokens, "--threads", "1", "--json")
    runner = _json_of("./smartmem_run", *words, cwd=_runner(folder, work))
    both = (weights + caches) / 1e6
    return {
        "rows": sizes.capacity,
        "parameters_bytes": 4 * numbers,
        "weights": weights,
        "folder": of_folder,
        "caches": caches,
        "folder_of_parameters": round(of_folder / 4 / numbers, 4),
        "before_mb": child["before_mb"],
        "peak_mb": child["peak_mb"],
        "above_python_of_both": round((child["peak_mb"] - child["before_mb"]) / both, 3),
        "runner_peak_mb": runner["peak_mb"],
        "runner_of_both": round(runner["peak_mb"] / both, 3),
        "same_ids": runner["ids"] == child["ids"],
    }


_LONG_PROMPT = list(range(300, 400))


def _parameters(sizes: Decoder) -> int:
    """Return the numbers in the network's matrices and norms."""
    norms = (2 * sizes.layers + 1) * sizes.width
    return token_bytes(sizes, FLOAT32) // 4 + sizes.vocabulary * sizes.width + norms


def _json_of(*command: str, cwd: Path | None = None) -> dict:
    return json.loads(subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout)


def _runner(folder: Path, work: Path) -> Path:
    """Export the program without Python."""
    from smartmem_tvm.cli import main

    there = work / "runner"
    if not there.exists():
        assert main(["export", str(folder), "--runner", "-o", str(there)]) == 0
    return there


def fill(folder: str) -> dict:
    """Fill the caches of a folder; return the peak of this process, and what it had before the model."""
    import smartmem_tvm as sm
    from smartmem_tvm.deploy import decoder, export  # noqa: F401
    from smartmem_tvm.peak_memory import peak_mb

    sm.Decoder  # noqa: B018 - loads the package
    before = peak_mb()
    writer = sm.Decoder(folder)
    ids = writer.generate(_LONG_PROMPT, writer.capacity - len(_LONG_PROMPT))
    return {"ids": ids, "before_mb": before, "peak_mb": peak_mb()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(_NEWLINE)[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--weights", choices=WEIGHTS, default=FLOAT32)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--memory", action="store_true", help="sizes and peaks, in place of times")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="for files and folders; by default a temporary one")
    parser.add_argument("--fill", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.fill:
        print(json.dumps(fill(args.fill)))
        return
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tune.host import set_threads, usable_cores

    set_threads(1)
    names = [each for each in args.systems if each not in _NOT_IN[args.weights]]
    found = []
    for rows in args.rows[-1:] if args.memory else args.rows:
        sizes = network(rows, args.layers)
        with tempfile.TemporaryDirectory() as temporary:
            work = args.work / f"{rows}_{args.layers}" if args.work else Path(temporary)
            work.mkdir(parents=True, exist_ok=True)
            found.append(
                memory(sizes, work) if args.memory else measured(sizes, args.weights, args.tokens, work, names)
            )
            print(json.dumps(found[-1]), flush=True)
    if args.json is not None:
        facts = {"machine": machine(usable_cores()), "threads": 1, "date": str(date.today())}
        Path(args.json).write_text(json.dumps({**facts, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

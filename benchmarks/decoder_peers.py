# SPDX-License-Identifier: Apache-2.0
"""A token of a Llama of 100 million weights in four bits, beside llama.cpp and onnxruntime-genai, in turns.

    pip install xllamacpp onnxruntime-genai
    python benchmarks/decoder_peers.py --genai FOLDER

The network has 12 layers of 768, hidden layers of 2,048, 12 query and 4 key heads, and a vocabulary of 32,000, with
random weights. This package and llama.cpp read the same GGUF file (``Q4_0``, the table of scores too),
onnxruntime-genai FOLDER, which its model builder makes of the same sizes (``-p int4 -e cpu``, ``accuracy_level`` 4,
blocks of 32).
Processor time of all threads of the process for a token, one thread of work each: the least and the median. llama.cpp
gives no moment between tokens, so its time is a quotient of the difference of two answers, of 4 and 36 tokens. Results
go to decoder_peers.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median

import gguf
import numpy as np

from smartmem_tvm.whole_file import whole

RESULTS = Path(__file__).resolve().parent / "decoder_peers.json"
LAYERS, WIDTH, INNER, HEADS, KEY_HEADS, VOCABULARY, ROWS = 12, 768, 2048, 12, 4, 32000, 256
_PROMPT, _FEW, _MANY = [5, 9, 300, 41], 4, 36


def write(path: Path) -> None:
    """Write the GGUF file, with tokens that stand for themselves, which llama.cpp asks for."""
    random, writer = np.random.default_rng(0), gguf.GGUFWriter(path, "llama")
    writer.add_context_length(ROWS)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("llama")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    writer.add_token_list([*special, *(f"t{n}" for n in range(VOCABULARY - len(special)))])
    writer.add_token_scores([0.0] * VOCABULARY)
    kinds = [2, 3, 3, *[6] * 256]
    writer.add_token_types(kinds + [1] * (VOCABULARY - len(kinds)))
    keys = WIDTH // HEADS * KEY_HEADS
    own = {"attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH), "attn_output": (WIDTH, WIDTH)}
    own |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": each for name, each in own.items()}
        shapes |= {f"blk.{layer}.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, "float32"))
            continue
        values = (random.standard_normal(shape) / np.sqrt(shape[1])).astype("float32")
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ours(path: Path, activations: str) -> Callable[[], list[float]]:
    """Return what measures this package: seconds of each token of a sequence."""
    import smartmem_tvm as sm

    compiled = sm.compile(sm.from_gguf(str(path), rows=ROWS), options=sm.Options(caches=True, activations=activations))

    def run() -> list[float]:
        decoder, seconds = sm.Decoder(compiled), []
        token = int(np.argmax(decoder.feed(_PROMPT)))
        for _ in range(_MANY):
            start = time.process_time()
            token = int(np.argmax(decoder.feed([token])))
            seconds.append(time.process_time() - start)
        return seconds

    return run


def genai(folder: Path) -> Callable[[], list[float]]:
    """Return what measures onnxruntime-genai."""
    import onnxruntime_genai as og

    config = og.Config(str(folder))
    config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": 1}}}}')
    model = og.Model(config)

    def run() -> list[float]:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=ROWS, do_sample=False)
        generator, seconds = og.Generator(model, params), []
        generator.append_tokens(np.array(_PROMPT, "int32"))
        generator.generate_next_token()
        for _ in range(_MANY):
            start = time.process_time()
            generator.generate_next_token()
            seconds.append(time.process_time() - start)
        return seconds

    return run


def llama_cpp(path: Path) -> Callable[[], list[float]]:
    """Return what measures llama.cpp."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(path), ROWS, 1, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)

    def answer(tokens: int) -> float:
        asked = {"prompt": _PROMPT, "n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
        start = time.process_time()
        got = server.handle_completions({**asked, "samplers": ["top_k"], "top_k": 1, "temperature": 0})
        seconds = time.process_time() - start
        got = json.loads(got) if isinstance(got, str) else got
        assert got["usage"]["completion_tokens"] == tokens, got
        return seconds

    answer(_FEW)
    return lambda: [(answer(_MANY) - answer(_FEW)) / (_MANY - _FEW)]


def main() -> int:
    """Measure, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genai", type=Path, metavar="FOLDER", help="left out without")
    parser.add_argument("--file", type=Path, metavar="FILE", help="the GGUF file: kept there, and read again")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tune.host import set_threads

    set_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        path = args.file or Path(temporary) / "llama.gguf"
        if not path.exists():
            write(path)
        runs = {"llama.cpp": llama_cpp(path)}
        if args.genai is not None:
            runs["onnxruntime-genai"] = genai(args.genai)
        runs |= {"ours, rows in bytes": ours(path, "int8"), "ours, rows in floats": ours(path, "stored")}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(args.rounds):
            for name, run in runs.items():
                seconds[name] += run()
        size = path.stat().st_size
    rows = {
        name: {"least_ms": round(1e3 * min(each), 2), "median_ms": round(1e3 * median(each), 2), "of": len(each)}
        for name, each in seconds.items()
    }
    facts = {"machine": machine(1), "date": date.today().isoformat(), "bytes of file": size, "token": rows}
    with whole(args.output) as file:
        file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

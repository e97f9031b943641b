#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token of the Llama of `decoding.py` beside onnxruntime-genai and llama.cpp, in one process, on one thread.

pip install gguf onnxruntime-genai xllamacpp
python benchmarks/decoding_peers.py --json out.json     # caches of 256 and of 2,048 rows
python benchmarks/decoding_peers.py --layers 2 --rows 256
python benchmarks/decoding_peers.py --memory            # a folder's size, and the peak of 2,048 tokens in a new process

All have the same weights in float32, read the same prompt, and write the last tokens that the caches have room for, in
turns of some tokens each. onnxruntime-genai gets the network as its own builder writes it, with GroupQueryAttention and
caches that past and present share; llama.cpp gets a GGUF file. Times are processor time of the whole process. The limit
is the time in which the weights of a token and the rows before it can be read, as in `decoding.py`.
"""

from __future__ import annotations

import argparse
import json
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
from decoder_network import TENSOR, Decoder, _Writer
from onnx import TensorProto, helper, numpy_helper

TURN = 8  # tokens of a system in a turn. Chosen: llama.cpp's server takes as long as one token to begin.
SYSTEMS = ("smartmem", "onnxruntime-genai", "llama.cpp")
_NEWLINE = "\n"


def network(rows: int, layers: int) -> Decoder:
    """Return the network with caches of so many rows."""
    return Decoder(32000, 768, layers, 12, 4, 2048, rows, "tokens", TENSOR)


class _Grouped(_Writer):
    """The network with GroupQueryAttention of ONNX Runtime, as onnxruntime-genai's builder writes it."""

    def angles(self) -> tuple[str, str]:
        rates = 1.0 / 10000 ** (np.arange(0, self.sizes.head, 2) / self.sizes.head)
        table = np.outer(np.arange(self.sizes.capacity), rates).astype("float32")
        return self.constant(np.cos(table)), self.constant(np.sin(table))

    def mask(self) -> str:
        total = self.emit("Gather", self.emit("Shape", "attention_mask"), self.constant(np.int64(1)), axis=0)
        self.total = self.emit("Cast", total, to=TensorProto.INT32)
        last = self.emit("Sub", self.emit("ReduceSum", "attention_mask", self.ints(1), keepdims=0), self.ints(1))
        return self.emit("Cast", last, to=TensorProto.INT32)

    def heads(self, x: str, _count: int) -> str:
        return x

    def attended(self, x: str, number: int, heads: tuple[str, str, str], cos: str, sin: str, mask: str) -> str:
        sizes, past = self.sizes, [f"past_key_values.{number}.{part}" for part in ("key", "value")]
        given = [*heads, *past, mask, self.total, cos, sin]
        results = [f"mixed_{number}", *(name.replace("past_key_values", "present") for name in past)]
        attrs = {"num_heads": sizes.heads, "kv_num_heads": sizes.key_heads, "do_rotary": 1}
        self.nodes.append(helper.make_node("GroupQueryAttention", given, results, domain="com.microsoft", **attrs))
        return self.emit("Add", x, self.emit("MatMul", results[0], self.matrix(sizes.width, sizes.width)))

    def model(self) -> onnx.ModelProto:
        sizes, info = self.sizes, helper.make_tensor_value_info
        x = self.emit("Gather", self.matrix(sizes.vocabulary, sizes.width), "input_ids", axis=0)
        (cos, sin), mask = self.angles(), self.mask()
        for number in range(sizes.layers):
            x = self.layer(x, number, cos, sin, mask)
        self.emit("MatMul", self.norm(x), self.matrix(sizes.width, sizes.vocabulary), name="logits")
        cache = ["batch", sizes.key_heads, "rows", sizes.head]
        inputs = [
            info("input_ids", TensorProto.INT64, ["batch", "n"]),
            info("attention_mask", TensorProto.INT64, ["batch", "all"]),
        ]
        inputs += [info(name, TensorProto.FLOAT, cache) for name in sizes.caches]
        outputs = [info("logits", TensorProto.FLOAT, ["batch", "n", sizes.vocabulary])]
        outputs += [info(name.replace("past_key_values", "present"), TensorProto.FLOAT, cache) for name in sizes.caches]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write_genai(sizes: Decoder, folder: Path) -> None:
    """Write a folder of onnxruntime-genai."""
    onnx.save(_Grouped(sizes).model(), folder / "model.onnx")
    caches = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    decoder = {
        "session_options": {"log_id": "decoder", "intra_op_num_threads": 1, "provider_options": []},
        "filename": "model.onnx",
        "head_size": sizes.head,
        "hidden_size": sizes.width,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {
            "logits": "logits",
            **{
                name.replace("past", "present"): form.replace("past_key_values", "present")
                for name, form in caches.items()
            },
        },
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.key_heads,
    }
    ids = {"bos_token_id": 1, "eos_token_id": sizes.vocabulary - 1, "pad_token_id": 0}
    model = {
        "type": "llama",
        "context_length": sizes.capacity,
        "decoder": decoder,
        "vocab_size": sizes.vocabulary,
        **ids,
    }
    search = {"do_sample": False, "max_length": sizes.capacity, "past_present_share_buffer": True}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}))


def write_gguf(sizes: Decoder, path: Path) -> None:
    """Write the network as a GGUF file in float32."""
    import gguf

    weights = [numpy_helper.to_array(each) for each in sizes.model().graph.initializer]
    tables = (max(sizes.capacity, 8), sizes.head)
    matrices = iter([each for each in weights if each.ndim == 2 and each.dtype == np.float32 and each.shape != tables])
    norms = iter([each for each in weights if each.shape == (sizes.width,)])
    out = gguf.GGUFWriter(str(path), "llama")
    for name, value in (
        ("context_length", sizes.capacity),
        ("embedding_length", sizes.width),
        ("block_count", sizes.layers),
        ("feed_forward_length", sizes.inner),
        ("head_count", sizes.heads),
        ("head_count_kv", sizes.key_heads),
        ("layer_norm_rms_eps", 1e-5),
        ("rope_freq_base", 10000.0),
        ("rope_dimension_count", sizes.head),
        ("vocab_size", sizes.vocabulary),
    ):
        getattr(out, f"add_{name}")(value)
    out.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{each:02X}>" for each in range(256))]
    tokens += [f"t{each}" for each in range(len(tokens), sizes.vocabulary)]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (sizes.vocabulary - 259)]
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types(kinds)

    def pairs(matrix: np.ndarray, heads: int) -> np.ndarray:
        """Return rows in the order of llama.cpp, which turns neighbours."""
        turned = matrix.T.reshape(heads, 2, sizes.head // 2, matrix.shape[0]).swapaxes(1, 2)
        return np.ascontiguousarray(turned.reshape(matrix.shape[::-1]))

    out.add_tensor("token_embd.weight", next(matrices))
    for layer in range(sizes.layers):
        start = f"blk.{layer}."
        out.add_tensor(start + "attn_norm.weight", next(norms))
        out.add_tensor(start + "attn_q.weight", pairs(next(matrices), sizes.heads))
        out.add_tensor(start + "attn_k.weight", pairs(next(matrices), sizes.key_heads))
        for name in ("attn_v", "attn_output"):
            out.add_tensor(f"{start}{name}.weight", np.ascontiguousarray(next(matrices).T))
        out.add_tensor(start + "ffn_norm.weight", next(norms))
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            out.add_tensor(f"{start}{name}.weight", np.ascontiguousarray(next(matrices).T))
    out.add_tensor("output_norm.weight", next(norms))
    out.add_tensor("output.weight", np.ascontiguousarray(next(matrices).T))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class Ours:
    """`Decoder` of this package."""

    def __init__(self, folder: Path):
        import smartmem_tvm as sm

        self.decoder = sm.Decoder(folder)

    def begin(self, prompt: list[int]) -> None:
        """Read a prompt."""
        self.decoder.reset()
        self.next = int(self.decoder.feed(prompt).argmax())

    def write(self, count: int) -> tuple[list[int], list[float]]:
        """Return tokens, and seconds of each but the first, which is known."""
        found, seconds = [], []
        for _ in range(count):
            start = time.process_time()
            found.append(self.next)
            self.next = int(self.decoder.feed([self.next]).argmax())
            seconds.append(time.process_time() - start)
        return found, seconds


class Genai:
    """onnxruntime-genai."""

    def __init__(self, folder: Path, rows: int):
        import onnxruntime_genai

        self.package, self.rows = onnxruntime_genai, rows
        self.model = onnxruntime_genai.Model(str(folder))

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

    def __init__(self, path: Path, rows: int):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(path), rows, 1, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # slower here
        self.server, self.ids = xllamacpp.Server(params), []

    def begin(self, prompt: list[int]) -> None:
        """Read a prompt: all but its last token are kept for the next requests."""
        self.ids = list(prompt)
        self._asked(1, lambda _: None)

    def write(self, count: int) -> tuple[list[int], list[float]]:
        """Return tokens, and seconds of each but the first, in which the request begins."""
        found, times = [], []

        def take(data: dict) -> None:
            text = data["choices"][0]["text"]  # the name of the token, as `write_gguf` gives it
            found.append(int(text[1:]) if text[:1] == "t" and text[1:].isdigit() else -1)
            times.append(time.process_time())

        self._asked(count, take)
        self.ids += found[:count]
        return found[:count], np.diff(times[:count]).tolist()

    def _asked(self, count: int, take: Callable[[dict], None]) -> None:
        request = {"prompt": self.ids, "n_predict": count, "temperature": 0, "cache_prompt": True, "stream": True}
        self.server.handle_completions({**request, "ignore_eos": True}, take)


def compiled(sizes: Decoder, folder: Path) -> Path:
    """Compile the network with the command line, for one token and for prompts."""
    from smartmem_tvm.cli import main

    onnx.save(sizes.model(), folder / "network.onnx")
    shapes = [word for name in ("input_ids", "position_ids") for word in ("--shape", f"{name}:1,{{1,64}}")]
    assert main(["compile", str(folder / "network.onnx"), "-o", str(folder / "ours"), "--cache", "auto", *shapes]) == 0
    return folder / "ours"


def measured(rows: int, layers: int, tokens: int, folder: Path, names: Sequence[str]) -> dict:
    """Write the last tokens of caches with these systems, in turns; return milliseconds."""
    from decoding import Reader

    sizes = network(rows, layers)
    makers = {"smartmem": ours, "onnxruntime-genai": genai, "llama.cpp": llama_cpp}
    systems = {name: makers[name](sizes, folder) for name in names}
    prompt = np.random.default_rng(0).integers(300, sizes.vocabulary, rows - tokens - 2).tolist()
    for each in systems.values():
        each.begin(prompt)
    matrices = [each for each in sizes.model().graph.initializer if len(each.dims) == 2][1:]
    row = 4 * len(sizes.caches) * sizes.key_heads * sizes.head
    weights = sum(4 * int(np.prod(each.dims)) for each in matrices) - 2 * 4 * sizes.capacity * sizes.head
    reader = Reader(weights + rows * row, 1)
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
    same = {name: ids == found[names[0]] for name, ids in found.items()}
    return {
        "rows": rows,
        "layers": layers,
        "tokens": tokens,
        "same_ids": same,
        "read_bytes": weights + rows * row,
        **{
            name: {"least_ms": min(each) * 1e3, "median_ms": statistics.median(each) * 1e3}
            for name, each in times.items()
        },
    }


def ours(sizes: Decoder, folder: Path) -> Ours:
    """Compile the network."""
    return Ours(compiled(sizes, folder))


def genai(sizes: Decoder, folder: Path) -> Genai:
    """Write a folder of onnxruntime-genai and load it."""
    (folder / "genai").mkdir()
    write_genai(sizes, folder / "genai")
    return Genai(folder / "genai", sizes.capacity)


def llama_cpp(sizes: Decoder, folder: Path) -> LlamaCpp:
    """Write a GGUF file and load it."""
    write_gguf(sizes, folder / "network.gguf")
    return LlamaCpp(folder / "network.gguf", sizes.capacity)


def memory(rows: int, layers: int, folder: Path) -> dict:
    """Return the bytes of a compiled folder, and the peak of a process that fills its caches."""
    sizes = network(rows, layers)
    ours = compiled(sizes, folder)
    weights = json.loads((ours / "manifest.json").read_text())["memory_bytes"]["weights"]
    arguments = [sys.executable, __file__, "--fill", str(ours)]
    child = subprocess.run(arguments, capture_output=True, text=True, check=True)
    caches = 4 * len(sizes.caches) * sizes.key_heads * sizes.head * rows
    bytes_of_folder = sum(each.stat().st_size for each in ours.rglob("*") if each.is_file())
    return {"rows": rows, "weights": weights, "folder": bytes_of_folder, "caches": caches, **json.loads(child.stdout)}


def fill(folder: str) -> dict:
    """Fill the caches of a folder; return the peak of this process, and what it had before the model."""
    import smartmem_tvm as sm
    from smartmem_tvm.deploy import decoder, export  # noqa: F401
    from smartmem_tvm.peak_memory import peak_mb

    sm.Decoder  # noqa: B018 - loads the package
    before = peak_mb()
    writer = sm.Decoder(folder)
    tokens = writer.capacity - 64
    ids = writer.generate(list(range(300, 364)), tokens)
    return {"tokens": len(ids), "before_mb": before, "peak_mb": peak_mb()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(_NEWLINE)[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--memory", action="store_true", help="sizes and peaks, in place of times")
    parser.add_argument("--fill", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.fill:
        print(json.dumps(fill(args.fill)))
        return
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tune.host import set_threads, usable_cores

    set_threads(1)
    found = []
    for rows in args.rows[-1:] if args.memory else args.rows:
        with tempfile.TemporaryDirectory() as folder:
            work = memory(rows, args.layers, Path(folder)) if args.memory else None
            found.append(work or measured(rows, args.layers, args.tokens, Path(folder), args.systems))
            print(json.dumps(found[-1]), flush=True)
    if args.json is not None:
        facts = {"machine": machine(usable_cores()), "threads": 1, "date": str(date.today())}
        Path(args.json).write_text(json.dumps({**facts, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

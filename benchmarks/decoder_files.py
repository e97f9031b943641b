# SPDX-License-Identifier: Apache-2.0
"""A network of `decoder_network.py` as other systems read it, with its weights in float32 or in four bits.

llama.cpp gets a GGUF file, onnxruntime-genai a folder as its own builder writes it, with GroupQueryAttention and caches
that past and present share. In four bits both have the codes of ``Q4_0``, a scale for 32 numbers: `MatMulNBits` holds
the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import onnx
from decoder_network import Decoder, _Writer
from gguf.quants import dequantize, quantize
from onnx import TensorProto, helper, numpy_helper

FLOAT32, Q4_0 = "float32", "q4_0"
WEIGHTS = (FLOAT32, Q4_0)
_CODES = gguf.GGMLQuantizationType.Q4_0
_GROUP = 32  # numbers that share a scale. Defined by Q4_0.
_BYTES = {FLOAT32: 4.0, Q4_0: 18 / _GROUP}
"""Bytes of a weight. Defined by the formats."""


def token_bytes(sizes: Decoder, weights: str) -> int:
    """Return the bytes of the weights that a token reads: all matrices, but of the table of tokens one row."""
    keys = sizes.key_heads * sizes.head
    layer = sizes.width * (2 * sizes.width + 2 * keys + 3 * sizes.inner)
    return int((sizes.layers * layer + sizes.width * sizes.vocabulary) * _BYTES[weights])


def row_bytes(sizes: Decoder) -> int:
    """Return the bytes of a token's rows in all caches."""
    return 4 * len(sizes.caches) * sizes.key_heads * sizes.head


class _Grouped(_Writer):
    """The network with GroupQueryAttention of ONNX Runtime."""

    def __init__(self, sizes: Decoder, weights: str):
        super().__init__(sizes)
        self.codes = weights == Q4_0

    def emit(self, op: str, *inputs: str, name: str = "", **attrs) -> str:
        if op == "MatMul" and self.codes:
            return self.in_codes(inputs[0], numpy_helper.to_array(self.weights.pop()), name)
        return super().emit(op, *inputs, name=name, **attrs)

    def in_codes(self, x: str, matrix: np.ndarray, name: str) -> str:
        """Return a product with a matrix of four bits, its rows in eight as onnxruntime-genai's builder asks for."""
        inner, columns = matrix.shape
        blocks = quantize(np.ascontiguousarray(matrix.T), _CODES).reshape(columns, inner // _GROUP, -1)
        scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").astype("float32").reshape(-1)
        halves = [blocks[:, :, 2:] & 15, blocks[:, :, 2:] >> 4]
        codes = np.concatenate(halves, axis=2)
        packed = codes[:, :, ::2] | codes[:, :, 1::2] << 4
        given = [x, self.constant(np.ascontiguousarray(packed)), self.constant(scales)]
        result = name or f"product_{len(self.nodes)}"
        sizes = {"K": inner, "N": columns, "bits": 4, "block_size": _GROUP, "accuracy_level": 4}
        self.nodes.append(helper.make_node("MatMulNBits", given, [result], domain="com.microsoft", **sizes))
        return result

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

    def table(self) -> str:
        """Return the table of tokens, of the numbers that are in the GGUF file."""
        name = self.matrix(self.sizes.vocabulary, self.sizes.width)
        if not self.codes:
            return name
        return self.constant(dequantize(quantize(numpy_helper.to_array(self.weights.pop()), _CODES), _CODES))

    def model(self) -> onnx.ModelProto:
        sizes, info = self.sizes, helper.make_tensor_value_info
        x = self.emit("Gather", self.table(), "input_ids", axis=0)
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


def write_genai(sizes: Decoder, folder: Path, weights: str = FLOAT32) -> None:
    """Write a folder of onnxruntime-genai."""
    folder.mkdir(exist_ok=True)
    onnx.save(_Grouped(sizes, weights).model(), folder / "model.onnx")
    caches = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    presents = {
        name.replace("past", "present"): form.replace("past_key_values", "present") for name, form in caches.items()
    }
    decoder = {
        "session_options": {"log_id": "decoder", "intra_op_num_threads": 1, "provider_options": []},
        "filename": "model.onnx",
        "head_size": sizes.head,
        "hidden_size": sizes.width,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {"logits": "logits", **presents},
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.key_heads,
    }
    model = {
        "type": "llama",
        "context_length": sizes.capacity,
        "decoder": decoder,
        "vocab_size": sizes.vocabulary,
        "bos_token_id": 1,
        "eos_token_id": sizes.vocabulary - 1,
        "pad_token_id": 0,
    }
    search = {"do_sample": False, "max_length": sizes.capacity, "past_present_share_buffer": True}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}))


def write_gguf(sizes: Decoder, path: Path, weights: str = FLOAT32) -> None:
    """Write the network as a GGUF file; the text of token 300 is `t300`, for llama.cpp answers in text."""
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
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types([2, 3, 3, *[6] * 256, *[1] * (sizes.vocabulary - 259)])
    for name, array in _tensors(sizes):
        if weights == FLOAT32 or array.ndim == 1:
            out.add_tensor(name, array)
        else:
            out.add_tensor(name, quantize(array, _CODES), raw_dtype=_CODES)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _tensors(sizes: Decoder) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of the network by their names in GGUF."""
    weights = [numpy_helper.to_array(each) for each in sizes.model().graph.initializer]
    tables = (max(sizes.capacity, 8), sizes.head)
    matrices = iter([each for each in weights if each.ndim == 2 and each.dtype == np.float32 and each.shape != tables])
    norms = iter([each for each in weights if each.shape == (sizes.width,)])

    def pairs(matrix: np.ndarray, heads: int) -> np.ndarray:
        """Return rows in the order of llama.cpp, which turns neighbours."""
        turned = matrix.T.reshape(heads, 2, sizes.head // 2, matrix.shape[0]).swapaxes(1, 2)
        return np.ascontiguousarray(turned.reshape(matrix.shape[::-1]))

    yield "token_embd.weight", next(matrices)
    for layer in range(sizes.layers):
        start = f"blk.{layer}."
        yield start + "attn_norm.weight", next(norms)
        yield start + "attn_q.weight", pairs(next(matrices), sizes.heads)
        yield start + "attn_k.weight", pairs(next(matrices), sizes.key_heads)
        for name in ("attn_v", "attn_output"):
            yield f"{start}{name}.weight", np.ascontiguousarray(next(matrices).T)
        yield start + "ffn_norm.weight", next(norms)
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            yield f"{start}{name}.weight", np.ascontiguousarray(next(matrices).T)
    yield "output_norm.weight", next(norms)
    yield "output.weight", np.ascontiguousarray(next(matrices).T)

# SPDX-License-Identifier: Apache-2.0
"""Small GGUF files with random weights, and their networks in numpy, from the floats that package `gguf` unpacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
HALVES |= {"IQ4_NL": (0,), "IQ4_XS": (0,)}
"""Formats that `gguf` does not write -> where their blocks have halves."""
_LARGEST = {"Q2_K": 20, "Q3_K": 60, "Q4_K": 100, "Q5_K": 200, "Q6_K": 1000, "IQ4_NL": 50, "IQ4_XS": 1000}
"""What brings weights of a random block to about the size of normally distributed ones."""


def stored(random: np.random.Generator, shape: tuple, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes, or floats, of a drawn tensor, and its numbers in float32."""
    type_ = gguf.GGMLQuantizationType[kind]
    if kind == "I32":
        return np.zeros(shape, "int32"), np.zeros(shape, "float32")
    if kind not in HALVES:
        values = (random.standard_normal(shape) / shape[-1] ** 0.5).astype("float32")
        data = quantize(values, type_)
        return data, dequantize(data, type_).reshape(shape)
    size, count = gguf.GGML_QUANT_SIZES[type_]
    data = random.integers(0, 256, (shape[0], shape[1] // size * count)).astype("uint8")
    for at in HALVES[kind]:  # so that weights are as large as those above
        scale = (0.5 + random.random(data.size // count)) / _LARGEST[kind] / shape[-1] ** 0.5
        scale *= 1 if at in (2, 82) else 0.1
        data.reshape(-1, count)[:, at : at + 2] = scale.astype("<f2").view("uint8").reshape(-1, 2)
    return data, dequantize(data, type_).reshape(shape)


@dataclass(frozen=True)
class Network:
    """The sizes of a network, and the formats of its tensors."""

    architecture: str = "llama"
    kind: str = "Q4_0"
    table: str = "Q4_0"
    output: str | None = "Q8_0"
    vocabulary: int = 67
    width: int = 64
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    head: int = 16
    inner: int = 96
    context: int = 48
    base: float = 5000.0
    factors: bool = False
    scaling: float = 1.0
    seed: int = 0
    more: dict = field(default_factory=dict)

    def tensors(self) -> dict[str, tuple[tuple, str]]:
        """Return name -> shape and format."""
        queries, keys = self.heads * self.head, self.key_heads * self.head
        found = {"token_embd.weight": ((self.vocabulary, self.width), self.table)}
        found["output_norm.weight"] = ((self.width,), "F32")
        if self.output is not None:
            found["output.weight"] = ((self.vocabulary, self.width), self.output)
        if self.factors:
            found["rope_freqs.weight"] = ((self.head // 2,), "F32")
        for layer in range(self.layers):
            own = {"attn_norm": ((self.width,), "F32"), "ffn_norm": ((self.width,), "F32")}
            own |= {"attn_q": ((queries, self.width), self.kind), "attn_k": ((keys, self.width), self.kind)}
            own |= {"attn_v": ((keys, self.width), self.kind), "attn_output": ((self.width, queries), self.kind)}
            own |= dict.fromkeys(("ffn_gate", "ffn_up"), ((self.inner, self.width), self.kind))
            own["ffn_down"] = ((self.width, self.inner), self.kind)
            if self.architecture == "qwen3":
                own |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), ((self.head,), "F32"))
            found |= {f"blk.{layer}.{name}.weight": each for name, each in own.items()}
            if self.architecture == "qwen2":
                sizes = {"q": queries, "k": keys, "v": keys}
                found |= {f"blk.{layer}.attn_{name}.bias": ((size,), "F32") for name, size in sizes.items()}
        return found

    def write(self, path: Path, leave_out: str = "", add: dict | None = None) -> Reference:
        """Write the file; `leave_out` is a tensor that is not written, `add` are more of them."""
        random, values = np.random.default_rng(self.seed), {}
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_context_length(self.context)
        writer.add_block_count(self.layers)
        writer.add_embedding_length(self.width)
        writer.add_feed_forward_length(self.inner)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.key_heads)
        writer.add_key_length(self.head)
        writer.add_value_length(self.head)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(self.base)
        writer.add_tokenizer_model("none")
        writer.add_token_list(["a", "b"])
        if self.scaling != 1:
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(self.scaling)
        for key, value in self.more.items():
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(f"{self.architecture}.{key}", value)
        for name, (shape, kind) in {**self.tensors(), **(add or {})}.items():
            data, values[name] = stored(random, shape, kind)
            if len(shape) == 1:
                data = values[name] = (1 + random.random(shape) / 4).astype("float32")
            if name != leave_out:
                writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Reference(replace(self), values)


@dataclass(frozen=True)
class Reference:
    """The network in numpy, in float64, on all tokens at once."""

    network: Network
    values: dict

    def scores(self, ids: list[int]) -> np.ndarray:
        """Return the scores after each token, (tokens, vocabulary)."""
        net, get = self.network, lambda name: self.values[f"{name}.weight"].astype("float64")
        x = get("token_embd")[ids]
        for layer in range(net.layers):
            x = self._layer(x, lambda name, layer=layer: f"blk.{layer}.{name}", get)
        return _norm(x, get("output_norm")) @ get("token_embd" if net.output is None else "output").T

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """Return the tokens with the largest scores."""
        ids = list(prompt)
        for _ in range(tokens):
            ids.append(int(self.scores(ids)[-1].argmax()))
        return ids[len(prompt) :]

    def _layer(self, x, name, get):
        net, count = self.network, len(x)

        def heads(part: str, number: int) -> np.ndarray:
            y = x_ @ get(name(f"attn_{part}")).T
            y = y + self.values.get(f"{name(f'attn_{part}')}.bias", 0)
            y = y.reshape(count, number, net.head)
            if f"{name(f'attn_{part}_norm')}.weight" in self.values:
                y = _norm(y, get(name(f"attn_{part}_norm")))
            return y

        x_ = _norm(x, get(name("attn_norm")))
        q, k = self._turned(heads("q", net.heads)), self._turned(heads("k", net.key_heads))
        v = heads("v", net.key_heads)
        k, v = (np.repeat(each, net.heads // net.key_heads, 1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / net.head**0.5
        scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(count, -1)
        x = x + mixed @ get(name("attn_output")).T
        x_ = _norm(x, get(name("ffn_norm")))
        gate, up = x_ @ get(name("ffn_gate")).T, x_ @ get(name("ffn_up")).T
        return x + (gate / (1 + np.exp(-gate)) * up) @ get(name("ffn_down")).T

    def _turned(self, x: np.ndarray) -> np.ndarray:
        """Turn pairs of numbers, neighbours in files of llama, as complex numbers."""
        net, half = self.network, self.network.head // 2
        rates = net.base ** -(np.arange(half) / half) / net.scaling
        rates = rates / self.values["rope_freqs.weight"] if net.factors else rates
        turn = np.exp(1j * np.outer(np.arange(len(x)), rates))[:, None]
        if net.architecture == "llama":
            pairs = (x[..., ::2] + 1j * x[..., 1::2]) * turn
            return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)
        pairs = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([pairs.real, pairs.imag], -1)


def _norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * scale

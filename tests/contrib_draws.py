# SPDX-License-Identifier: Apache-2.0
"""Nodes of ONNX Runtime's own operators with any of their inputs and attributes, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from against_onnxruntime import integers

F, I32 = "float32", "int32"


@dataclass
class Drawn:
    """A node: inputs by name in their order (None where left out), attributes, results, and its constant inputs."""

    op: str
    inputs: dict = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)
    results: dict = field(default_factory=lambda: {"y": F})
    known: tuple = ()
    tolerance: float = 1e-5  # of the largest number of a result


def _digits_kept(mask, attributes: dict) -> float:
    """Return the tolerance of attention with this mask.

    A query that may read masked keys only compares scores to which -10,000 was added: float32 keeps them to 0.001,
    rounded before or after the sum, depending on the order in which ONNX Runtime's CPU kernels add.
    """
    bits = mask is not None and mask.ndim > 1
    return 1e-3 if bits and not mask[..., 0].all() and "mask_filter_value" not in attributes else 1e-5


class Draw:
    """Random numbers and choices."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def size(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def one(self, *choices):
        return choices[int(self.random.integers(len(choices)))]

    def maybe(self, make, chance: float = 0.4):
        return make() if self.random.random() < chance else None

    def some(self, chance: float = 0.3, **attributes) -> dict:
        return {name: value for name, value in attributes.items() if self.random.random() < chance}

    def floats(self, *shape) -> np.ndarray:
        return self.random.standard_normal(shape).astype(F)

    def bits(self, *shape) -> np.ndarray:
        return self.random.integers(0, 2, shape).astype(I32)

    def mask(self, batch: int, rows: int, keys: int, *kinds: str):
        kind = self.one("none", *kinds)
        ends = self.random.integers(1, keys + 1, batch).astype(I32)
        begins = np.array([self.random.integers(0, end) for end in ends], I32)
        found = {"none": lambda: None, "ends": lambda: ends, "keys": lambda: self.bits(batch, keys)}
        found |= {"both": lambda: np.concatenate([ends, begins]), "rows": lambda: self.bits(batch, rows, keys)}
        return found[kind]()

    def scores(self, batch: int, heads: int, rows: int, keys: int):
        return self.maybe(lambda: self.floats(self.one(1, batch), self.one(1, heads), rows, keys))


def attention(draw: Draw) -> Drawn:
    batch, rows, heads, size = draw.size(1, 3), draw.size(1, 5), draw.size(1, 4), draw.one(1, 4, 8)
    width, before = draw.size(1, 8), draw.maybe(lambda: draw.size(0, 3))
    values = size if before is not None else draw.one(size, 2, 8)
    keys, total = rows + (before or 0), heads * (2 * size + values)
    inputs = {"x": draw.floats(batch, rows, width), "w": draw.floats(width, total), "b": draw.floats(total)}
    inputs["mask"] = draw.mask(batch, rows, keys, "ends", "both", "keys", "rows")
    inputs["past"] = None if before is None else draw.floats(2, batch, heads, before, size)
    inputs["scores"] = None if before is not None else draw.scores(batch, heads, rows, keys)  # one of them only
    attributes = {"num_heads": heads, **draw.some(unidirectional=1, scale=0.4, mask_filter_value=-77.0)}
    attributes |= {} if values == size else {"qkv_hidden_sizes": [heads * size, heads * size, heads * values]}
    present = before is not None or draw.one(values == size, False)
    results = {"y": F, **({"present": F} if present else {})}
    return Drawn("Attention", inputs, attributes, results, ("w", "b"), _digits_kept(inputs["mask"], attributes))


def multi_head_attention(draw: Draw) -> Drawn:
    batch, rows, heads, size = draw.size(1, 3), draw.size(1, 5), draw.size(1, 4), draw.one(1, 4, 8)
    kind = draw.one("self", "other", "heads", "past")
    keys = rows if kind in ("self", "past") else draw.size(1, 6)
    before = draw.size(0, 3) if kind == "past" else 0
    values = size if kind in ("heads", "past") else draw.one(size, 2, 8)
    inputs = {"q": draw.floats(batch, rows, heads * size)}
    for name, own in (("k", size), ("v", values)):
        shape = (batch, heads, keys, own) if kind == "heads" else (batch, keys, heads * own)
        inputs[name] = draw.floats(*shape)
    inputs["b"] = draw.maybe(lambda: draw.floats(heads * (2 * size + values)))
    inputs["mask"] = draw.mask(batch, rows, keys + before, "ends", "keys", "rows")
    inputs["scores"] = draw.scores(batch, heads, rows, keys + before)
    if kind == "past":
        inputs |= {name: draw.floats(batch, heads, before, size) for name in ("pk", "pv")}
    attributes = {"num_heads": heads, **draw.some(scale=0.4, mask_filter_value=-77.0)}
    attributes |= draw.some(unidirectional=1) if kind in ("self", "past") else {}
    results = {"y": F, **({"ck": F, "cv": F} if kind == "past" else {})}
    return Drawn("MultiHeadAttention", inputs, attributes, results, ("b",), _digits_kept(inputs["mask"], attributes))


def _cache(draw: Draw) -> tuple:
    """Draw the rows, the capacity of the past, the tokens of each batch minus one, and those of the longest."""
    kind, batch = draw.one("prompt", "next", "chunk"), draw.size(1, 2)
    if kind == "prompt":
        rows = draw.size(1, 5)
        return rows, 0, np.full(batch, rows - 1, I32), rows
    if kind == "next":
        lengths = draw.random.integers(1, 7, batch).astype(I32)
        return 1, int(lengths.max()) + draw.size(0, 2), lengths, int(lengths.max()) + 1
    rows, old = draw.size(2, 3), draw.size(1, 4)
    room = draw.one(old, old + rows + draw.size(0, 3))  # the past grows by the new tokens, or has room for them
    return rows, room, np.array([old + rows - 1], I32), old + rows


def group_query_attention(draw: Draw) -> Drawn:
    (rows, before, lengths, total), own, size = _cache(draw), draw.one(1, 2), draw.one(16, 32)
    batch, heads = len(lengths), own * draw.size(1, 3)
    inputs = {name: draw.floats(batch, rows, count * size) for name, count in (("q", heads), ("k", own), ("v", own))}
    if draw.one(True, False, False):
        inputs = {"q": draw.floats(batch, rows, (heads + 2 * own) * size), "k": None, "v": None}
    inputs |= {name: draw.floats(batch, own, before, size) if before else None for name in ("pk", "pv")}
    inputs |= {"lengths": lengths, "total": np.array(total, I32)}
    turned = draw.one(True, False)
    inputs |= {name: draw.floats(32, size // 2) if turned else None for name in ("cos", "sin")}
    inputs |= {
        "at": None,
        "scores": draw.scores(batch, heads, rows, total),
        "sinks": draw.maybe(lambda: draw.floats(heads)),
    }
    attributes = {"num_heads": heads, "kv_num_heads": own, **draw.some(softcap=2.5, scale=0.3)}
    attributes |= {"do_rotary": 1, **draw.some(rotary_interleaved=1)} if turned else {}
    attributes |= draw.some(smooth_softmax=1) if inputs["sinks"] is None else {}
    attributes |= draw.one({}, {"local_window_size": draw.size(1, 4)}, {"causal": 0})
    known = ("total", "cos", "sin", "sinks", *draw.one((), ("lengths",)))
    return Drawn("GroupQueryAttention", inputs, attributes, {"y": F, "ck": F, "cv": F}, known)


def rotary_embedding(draw: Draw) -> Drawn:
    batch, rows, heads, size = draw.size(1, 3), draw.size(1, 5), draw.size(1, 3), draw.one(2, 4, 8, 16)
    part = size > 2 and draw.one(True, False)
    pairs = size // 4 if part else size // 2
    shape = draw.one((batch, heads, rows, size), (batch, rows, heads * size))
    places = draw.one(draw.random.integers(0, 10, (batch, rows)), draw.random.integers(0, 5, (1,)))
    inputs = {"x": draw.floats(*shape), "at": places, "cos": draw.floats(16, pairs), "sin": draw.floats(16, pairs)}
    attributes = {"num_heads": heads, "rotary_embedding_dim": 2 * pairs} if part else {}
    return Drawn("RotaryEmbedding", inputs, attributes | draw.some(interleaved=1), known=("cos", "sin"))


def fused_mat_mul(draw: Draw) -> Drawn:
    batch = [draw.size(1, 3) for _ in range(draw.size(0, 2))]
    rows, width, columns = (draw.size(1, 5) for _ in range(3))
    attributes, inputs = {"alpha": draw.one(1.0, 0.3)}, {}
    for side, matrix in (("A", (rows, width)), ("B", (width, columns))):
        shape = [*batch, *matrix]
        if draw.one(True, False):
            attributes[f"trans{side}"] = 1
            shape[-2:] = shape[:-3:-1]
        if batch and draw.one(True, False):
            attributes[f"transBatch{side}"] = 1
            shape.insert(0, shape.pop(-2))
        inputs[side.lower()] = draw.floats(*shape)
    return Drawn("FusedMatMul", inputs, attributes)


def mat_mul_n_bits(draw: Draw) -> Drawn:
    """With g_idx ONNX Runtime has four bits only, and reads packed zero points of other blocks than those named."""
    bits, block, width, columns = draw.one(2, 4, 8), draw.one(16, 32, 64, 256), draw.size(1, 80), draw.size(1, 20)
    width, columns = draw.one((width, columns), (width, columns), (draw.size(129, 200), 67))  # the last stays in codes
    blocks = -(-width // block)
    zeros, order = draw.one("none", "none", "packed", "float"), bits == 4 and draw.one(True, False, False)
    zeros = "float" if order and zeros == "packed" else "none" if bits == 8 and zeros == "float" else zeros
    inputs = {"a": draw.floats(*draw.one((), (2,)), draw.size(1, 3), width)}
    inputs["w"] = integers(draw.random, "uint8", (columns, blocks, block * bits // 8))
    inputs["s"] = (draw.random.random(draw.one(columns * blocks, (columns, blocks))) + 0.1).astype(F)
    points = {"none": None, "packed": integers(draw.random, "uint8", (columns * -(-blocks * bits // 8),))}
    points["float"] = (draw.random.random(columns * blocks) * 2**bits).astype(F)
    groups = (np.arange(width) // block, draw.random.permutation(np.arange(width) // block))
    inputs |= {"z": points[zeros], "order": draw.one(*groups).astype(I32) if order else None}
    inputs["b"] = draw.maybe(lambda: draw.floats(columns))
    attributes = {"K": width, "N": columns, "bits": bits, "block_size": block}
    attributes |= draw.some(accuracy_level=draw.one(0, 1))  # 4 rounds the rows, too: docs/quantization.md
    return Drawn("MatMulNBits", inputs, attributes, known=("w", "s", "z", "order", "b"))


def embed_layer_normalization(draw: Draw) -> Drawn:
    batch, rows, width, kinds = draw.size(1, 3), draw.size(1, 5), draw.one(1, 3, 8, 32), draw.one(True, False)
    numbers = draw.random.integers
    inputs = {"ids": numbers(0, 20, (batch, rows)).astype(I32), "kind": draw.bits(batch, rows) if kinds else None}
    inputs |= {"w": draw.floats(20, width), "p": draw.floats(10, width), "t": draw.floats(2, width) if kinds else None}
    inputs |= {"g": draw.floats(width), "b": draw.floats(width), "mask": draw.maybe(lambda: draw.bits(batch, rows))}
    inputs["at"] = draw.maybe(lambda: numbers(0, 10, (draw.one(1, batch), rows)).astype(I32))
    results = {"y": F, "count": I32, **draw.some(total=F)}
    return Drawn("EmbedLayerNormalization", inputs, draw.some(epsilon=1e-3), results, ("w", "p", "t", "g", "b"))


def skip_normalization(draw: Draw) -> Drawn:
    op = draw.one("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    batch, rows, width = draw.size(1, 3), draw.size(1, 5), draw.one(3, 8, 32)
    inputs = {"x": draw.floats(batch, rows, width), "g": draw.floats(width)}
    inputs = {"x": inputs["x"], "s": draw.floats(*draw.one((batch,), (1,), ()), rows, width), "g": inputs["g"]}
    if op == "SkipLayerNormalization":
        inputs["be"] = draw.maybe(lambda: draw.floats(width))
    inputs["bi"] = draw.maybe(lambda: draw.floats(width))
    results = draw.one({"y": F}, {"y": F, "": None, " ": None, "total": F})
    return Drawn(op, inputs, draw.some(epsilon=1e-3), results, ("g", "be", "bi"))


def q_gemm(draw: Draw) -> Drawn:
    rows, width, columns = (draw.size(1, 9) for _ in range(3))
    each, flags, wide = draw.one((), (columns,)), draw.some(0.5, transA=1, transB=1), draw.one(True, False)
    dtype = draw.one("int8", "uint8")
    a, b = integers(draw.random, "uint8", (rows, width)), integers(draw.random, dtype, (width, columns)) // 2
    inputs = {"a": a.T.copy() if "transA" in flags else a, "sa": np.float32(0.02), "za": integers(draw.random, "uint8")}
    inputs |= {"b": (b.T.copy() if "transB" in flags else b).astype(dtype), "sb": draw.random.random(each) * 0.1}
    inputs["sb"] = np.asarray(inputs["sb"], F)
    inputs["zb"] = np.zeros(each, dtype) if dtype == "int8" else np.full(each, integers(draw.random, dtype))
    inputs["c"] = draw.maybe(lambda: draw.random.integers(-900, 900, columns).astype(I32))
    if not wide:
        inputs |= {"sy": np.float32(0.3), "zy": integers(draw.random, "uint8")}
    known = tuple(name for name in inputs if name != "a")
    return Drawn("QGemm", inputs, flags | draw.some(alpha=0.5), {"y": F if wide else "uint8"}, known)


KINDS = (
    attention, multi_head_attention, group_query_attention, rotary_embedding, fused_mat_mul, mat_mul_n_bits,
    embed_layer_normalization, skip_normalization, q_gemm,
)  # fmt: skip

# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache with a window, drawn at random: an ONNX model, arrays for it, and its result in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from node_writer import NodeWriter

LEAST = float(np.finfo("float32").min)
IN_THE_FILE, ADDED, GIVEN = "in the file", "added", "given"


@dataclass(frozen=True)
class WindowAttention:
    """New rows of keys and values, then attention of tokens at positions of their own, for each sequence.

    Attributes
    ----------
    mask : str
        Computed from positions ``in the file``, an input of floats that is ``added``, or one of booleans ``given``.
    chosen : bool
        `low` takes the place of scores, and is not added to them.
    transposed : bool
        A column of the cache of keys is a row.
    """

    batch: int
    group: int
    key_heads: int
    tokens: int
    capacity: int
    depth: int
    window: int
    mask: str = IN_THE_FILE
    chosen: bool = False
    transposed: bool = False
    low: float = LEAST

    @classmethod
    def drawn(cls, random: np.random.Generator) -> WindowAttention:
        """Return one at random; it has more than one length."""
        capacity = int(random.integers(33, 300))
        mask = str(random.choice([IN_THE_FILE, ADDED, GIVEN]))
        return cls(
            batch=int(random.choice([1, 1, 2, 3])),
            group=int(random.choice([1, 2, 3])),
            key_heads=int(random.choice([1, 2, 4])),
            tokens=int(random.choice([1, 1, 1, 2, 5, 17, 32])),
            capacity=capacity,
            depth=int(random.choice([1, 3, 8, 16, 20])),
            window=int(random.integers(1, capacity)),
            mask=mask,
            chosen=mask != ADDED and bool(random.integers(2)),
            transposed=bool(random.integers(2)),
            low=float(random.choice([LEAST, -1e9, -np.inf])),
        )

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.group * self.key_heads

    @property
    def key_cache(self) -> tuple[int, ...]:
        """Shape of the cache of keys."""
        each = (self.depth, self.capacity) if self.transposed else (self.capacity, self.depth)
        return self.batch, self.key_heads, *each

    @property
    def value_cache(self) -> tuple[int, ...]:
        """Shape of the cache of values."""
        return self.batch, self.key_heads, self.capacity, self.depth

    def model(self) -> onnx.ModelProto:
        """Return the model; its result is ``out``."""
        writer = NodeWriter()
        node, constant = writer.node, writer.constant

        b, t, rows = self.batch, self.tokens, self.capacity

        def written(cache: str, new: str, columns: bool):
            at = node("Reshape", "places", constant([b, 1, 1, t] if columns else [b, 1, t, 1]))
            every = node("Expand", at, node("Shape", new))
            past, name = f"past.{cache}", f"present.{cache}"
            return node("ScatterElements", past, every, new, axis=3 if columns else 2, name=name)

        def of_heads(rows_of, shape):
            wide = node("Unsqueeze", rows_of, constant([2]))
            wide = node("Expand", wide, constant([1, 1, self.group, 1, 1]))
            return node("Reshape", wide, constant([b, self.heads, *shape[2:]]))

        k = of_heads(written("key", "new_key", self.transposed), self.key_cache)
        v = of_heads(written("value", "new_value", False), self.value_cache)
        scores = node("MatMul", "q", k if self.transposed else node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = node("Mul", scores, constant(self.depth**-0.5, "float32"))
        if self.mask == ADDED:
            scores = node("Add", scores, "mask")
        else:
            seen = "mask"
            if self.mask == IN_THE_FILE:
                numbers, at = constant(np.arange(rows)), node("Reshape", "places", constant([b, 1, t, 1]))
                after = node("Greater", numbers, node("Sub", at, constant(self.window)))
                seen = node("And", node("LessOrEqual", numbers, at), after)
            low, zero = constant(self.low, "float32"), constant(0, "float32")
            if self.chosen:
                scores = node("Where", seen, scores, low)
            else:
                scores = node("Add", scores, node("Where", seen, zero, low))
        node("MatMul", node("Softmax", scores, axis=-1), v, name="out")
        info, new = helper.make_tensor_value_info, (b, self.key_heads, t, self.depth)
        turned = (*new[:2], self.depth, t)
        inputs = [info("q", 1, [b, self.heads, t, self.depth]), info("places", TensorProto.INT64, [b, t])]
        inputs += [info("new_key", 1, turned if self.transposed else new), info("new_value", 1, new)]
        if self.mask != IN_THE_FILE:
            inputs.append(info("mask", 1 if self.mask == ADDED else TensorProto.BOOL, [b, 1, t, rows]))
        caches = {"key": self.key_cache, "value": self.value_cache}
        inputs += [info(f"past.{name}", 1, shape) for name, shape in caches.items()]
        outputs = [info("out", 1, [b, self.heads, t, self.depth])]
        outputs += [info(f"present.{name}", 1, shape) for name, shape in caches.items()]
        graph = helper.make_graph(writer.nodes, "attention", inputs, outputs, writer.held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def seen(self, random: np.random.Generator, places: np.ndarray) -> np.ndarray:
        """Return which rows each token sees, batch x tokens x rows; with holes where the caller gives the mask."""
        numbers = np.arange(self.capacity)
        seen = (numbers <= places[..., None]) & (numbers > places[..., None] - self.window)
        if self.mask != IN_THE_FILE:
            itself = numbers == places[..., None]
            seen &= (random.random(seen.shape) < random.choice([0.1, 0.5, 1.0])) | itself
        return seen

    def arrays(self, random: np.random.Generator, firsts) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return inputs, with tokens from a position of each sequence on, and which rows each token sees."""
        places = np.asarray(firsts)[:, None] + np.arange(self.tokens)
        seen = self.seen(random, places)

        def normal(*shape):
            return random.standard_normal(shape).astype("float32")

        new = (self.batch, self.key_heads, self.tokens, self.depth)
        found = {"q": normal(self.batch, self.heads, self.tokens, self.depth), "places": places}
        keys = normal(*new)
        found["new_key"] = keys.transpose(0, 1, 3, 2).copy() if self.transposed else keys
        found["new_value"] = normal(*new)
        if self.mask == ADDED:
            found["mask"] = np.where(seen, np.float32(0), np.float32(self.low))[:, None]
        elif self.mask == GIVEN:
            found["mask"] = seen[:, None]
        return found | {"past.key": normal(*self.key_cache), "past.value": normal(*self.value_cache)}, seen

    def result(self, inputs: dict[str, np.ndarray], seen: np.ndarray) -> np.ndarray:
        """Return the result of attention over the rows that each token sees, which may be none for no token."""
        keys, values = inputs["past.key"].astype("float64"), inputs["past.value"].astype("float64")
        if self.transposed:
            keys = keys.transpose(0, 1, 3, 2).copy()
        new = inputs["new_key"].transpose(0, 1, 3, 2) if self.transposed else inputs["new_key"]
        for sequence, places in enumerate(inputs["places"]):
            keys[sequence][:, places], values[sequence][:, places] = new[sequence], inputs["new_value"][sequence]
        out = np.zeros_like(inputs["q"], "float64")
        for b, h, t in np.ndindex(self.batch, self.heads, self.tokens):
            rows = seen[b, t]
            scores = keys[b, h // self.group][rows] @ inputs["q"][b, h, t] * self.depth**-0.5
            weights = np.exp(scores - scores.max())
            out[b, h, t] = weights @ values[b, h // self.group][rows] / weights.sum()
        return out

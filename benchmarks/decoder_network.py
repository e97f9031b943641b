# SPDX-License-Identifier: Apache-2.0
"""Small networks like Llama, as ONNX: grouped queries, rotary embeddings, RMS norms, and caches in several forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WHERE, ELEMENTS, ND, TENSOR, CONCAT = "where", "scatter-elements", "scatter-nd", "tensor-scatter", "concat"
FORMS = (WHERE, ELEMENTS, ND, TENSOR)
"""How the new rows get into a cache of fixed size."""
CIRCULAR = "circular"
"""The same where the row after the last one is the first one."""
_OPSET = 24


@dataclass(frozen=True)
class Decoder:
    """The sizes of a network.

    Attributes
    ----------
    capacity : int
        Rows of each cache.
    tokens : int or str
        Tokens of one run; a name leaves the dimension open.
    form : str
        One of `FORMS`, `CIRCULAR` or `CONCAT`.
    batch : int
        Sequences of one run.
    window : int
        How many tokens each one sees, itself and those before it; 0 for all. Circular caches have a window.
    """

    vocabulary: int = 61
    width: int = 24
    layers: int = 2
    heads: int = 6
    key_heads: int = 2
    inner: int = 40
    capacity: int = 16
    tokens: int | str = 1
    form: str = WHERE
    batch: int = 1
    seed: int = 0
    window: int = 0

    @property
    def head(self) -> int:
        """Numbers of one head."""
        return self.width // self.heads

    @property
    def cache(self) -> tuple[int, int, int, int]:
        """Shape of one cache."""
        return self.batch, self.key_heads, self.capacity, self.head

    @property
    def caches(self) -> list[str]:
        """Names of the cache inputs, in their order."""
        return [f"past_key_values.{layer}.{part}" for layer in range(self.layers) for part in ("key", "value")]

    def model(self) -> onnx.ModelProto:
        """Return the network."""
        return _Writer(self).model()


class _Writer:
    def __init__(self, sizes: Decoder):
        self.sizes = sizes
        self.random = np.random.default_rng(sizes.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def emit(self, op: str, *inputs: str, name: str = "", **attrs) -> str:
        name = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def constant(self, array) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, "int64"))

    def matrix(self, rows: int, columns: int) -> str:
        return self.constant((self.random.standard_normal((rows, columns)) / rows**0.5).astype("float32"))

    def norm(self, x: str) -> str:
        """Return an RMS norm, as exporters write it."""
        square = self.emit("ReduceMean", self.emit("Mul", x, x), self.ints(-1), keepdims=1)
        root = self.emit("Sqrt", self.emit("Add", square, self.constant(np.float32(1e-5))))
        scale = (1 + self.random.standard_normal(self.sizes.width) / 8).astype("float32")
        return self.emit("Mul", self.emit("Div", x, root), self.constant(scale))

    def heads(self, x: str, count: int) -> str:
        parted = self.emit("Reshape", x, self.ints(0, 0, count, self.sizes.head))
        return self.emit("Transpose", parted, perm=[0, 2, 1, 3])

    def rotated(self, x: str, cos: str, sin: str) -> str:
        half = self.sizes.head // 2
        first = self.emit("Slice", x, self.ints(0), self.ints(half), self.ints(3))
        second = self.emit("Slice", x, self.ints(half), self.ints(2 * half), self.ints(3))
        turned = self.emit("Concat", self.emit("Neg", second), first, axis=3)
        return self.emit("Add", self.emit("Mul", x, cos), self.emit("Mul", turned, sin))

    def angles(self) -> tuple[str, str]:
        """Return cosines and sines of the positions, (batch, 1, tokens, head)."""
        rates = 1.0 / 10000 ** (np.arange(0, self.sizes.head, 2) / self.sizes.head)
        positions = max(self.sizes.capacity, 8) * (8 if self.sizes.form == CIRCULAR else 1)
        table = np.outer(np.arange(positions), np.concatenate([rates, rates])).astype("float32")
        found = (self.emit("Gather", self.constant(f(table)), "position_ids", axis=0) for f in (np.cos, np.sin))
        cos, sin = (self.emit("Unsqueeze", each, self.ints(1)) for each in found)
        return cos, sin

    def present(self, past: str, new: str, name: str) -> str:
        """Return the cache with the rows of `new` at `position_ids`."""
        sizes, form = self.sizes, self.sizes.form
        if form == CONCAT:
            return self.emit("Concat", past, new, axis=2, name=name)
        if form == WHERE:  # one token
            rows = self.constant(np.arange(sizes.capacity).reshape(1, 1, -1, 1))
            at = self.emit("Unsqueeze", "position_ids", self.ints(1, 2))  # (batch, 1, 1, 1)
            return self.emit("Where", self.emit("Equal", rows, at), new, past, name=name)
        if form in (TENSOR, CIRCULAR):
            mode = "circular" if form == CIRCULAR else "linear"
            first = self.emit("Slice", "position_ids", self.ints(0), self.ints(1), self.ints(1))
            at = self.emit("Reshape", first, self.ints(-1))
            return self.emit("TensorScatter", past, new, at, axis=2, mode=mode, name=name)
        if form == ELEMENTS:
            at = self.emit("Reshape", "position_ids", self.ints(sizes.batch, 1, -1, 1))
            every = self.emit("Expand", at, self.emit("Shape", new))
            return self.emit("ScatterElements", past, every, new, axis=2, name=name)
        if sizes.batch > 1:
            return self.written_at_pairs(past, new, name)
        places = self.emit("Reshape", "position_ids", self.ints(-1))
        turned = [self.emit("Transpose", each, perm=[2, 1, 0, 3]) for each in (past, new)]
        at = self.emit("Unsqueeze", places, self.ints(-1))
        return self.emit("Transpose", self.emit("ScatterND", turned[0], at, turned[1]), perm=[2, 1, 0, 3], name=name)

    def written_at_pairs(self, past: str, new: str, name: str) -> str:
        """Return ``past[sequences, :, positions] = new``, as torch writes it: at pairs of a sequence and a row."""
        turned = [self.emit("Transpose", each, perm=[0, 2, 1, 3]) for each in (past, new)]
        numbers = self.constant(np.arange(self.sizes.batch)[:, None])
        numbers = self.emit("Expand", numbers, self.emit("Shape", "position_ids"))
        pairs = [self.emit("Unsqueeze", each, self.ints(-1)) for each in (numbers, "position_ids")]
        at = self.emit("Concat", *pairs, axis=-1)
        return self.emit("Transpose", self.emit("ScatterND", turned[0], at, turned[1]), perm=[0, 2, 1, 3], name=name)

    def mask(self) -> str:
        """Return what is added to scores: 0, or a very negative number beyond a token's own place."""
        low, window = np.float32(-1e9), self.sizes.window
        if self.sizes.form == CONCAT:  # (batch, keys) -> (batch, 1, 1, keys)
            seen = self.emit("Unsqueeze", self.emit("Cast", "attention_mask", to=TensorProto.BOOL), self.ints(1, 2))
        else:
            rows = self.constant(np.arange(self.sizes.capacity))
            at = self.emit("Unsqueeze", "position_ids", self.ints(1, 3))
            rows = self.held(rows) if self.sizes.form == CIRCULAR else rows
            seen = self.emit("LessOrEqual", rows, at)
            if window:
                seen = self.emit("And", seen, self.emit("Greater", rows, self.emit("Sub", at, self.ints(window))))
            if self.sizes.form == CIRCULAR:
                seen = self.emit("And", seen, self.emit("GreaterOrEqual", rows, self.ints(0)))
        return self.emit("Where", seen, self.constant(np.float32(0)), self.constant(low))

    def held(self, rows: str) -> str:
        """Return the position whose keys are in each row of a circular cache, negative if there was none."""
        last = self.emit("Slice", "position_ids", self.ints(-1), self.ints(2**31), self.ints(1))
        before = self.emit("Mod", self.emit("Sub", last, rows), self.ints(self.sizes.capacity))
        return self.emit("Unsqueeze", self.emit("Sub", last, before), self.ints(1, 2))

    def layer(self, x: str, number: int, cos: str, sin: str, mask: str) -> str:
        sizes = self.sizes
        normed = self.norm(x)
        width = sizes.key_heads * sizes.head
        q = self.heads(self.emit("MatMul", normed, self.matrix(sizes.width, sizes.width)), sizes.heads)
        k, v = (
            self.heads(self.emit("MatMul", normed, self.matrix(sizes.width, width)), sizes.key_heads) for _ in range(2)
        )
        x = self.attended(x, number, (q, k, v), cos, sin, mask)
        normed = self.norm(x)
        return self.gated(x, *(self.emit("MatMul", normed, self.matrix(sizes.width, sizes.inner)) for _ in range(2)))

    def attended(self, x: str, number: int, heads: tuple[str, str, str], cos: str, sin: str, mask: str) -> str:
        """Return `x` plus attention by its queries, keys and values as heads, over the caches of layer `number`."""
        sizes, (q, k, v) = self.sizes, heads
        q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
        keys = self.present(f"past_key_values.{number}.key", k, f"present.{number}.key")
        values = self.present(f"past_key_values.{number}.value", v, f"present.{number}.value")
        keys, values = self.repeated(keys), self.repeated(values)
        scores = self.emit("MatMul", q, self.emit("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.emit("Mul", scores, self.constant(np.float32(sizes.head**-0.5)))
        weights = self.emit("Softmax", self.emit("Add", scores, mask), axis=-1)
        mixed = self.emit("Transpose", self.emit("MatMul", weights, values), perm=[0, 2, 1, 3])
        mixed = self.emit("Reshape", mixed, self.ints(0, 0, sizes.width))
        return self.emit("Add", x, self.emit("MatMul", mixed, self.matrix(sizes.width, sizes.width)))

    def gated(self, x: str, gate: str, up: str) -> str:
        """Return `x` plus the second product of a gated layer."""
        gated = self.emit("Mul", self.emit("Mul", gate, self.emit("Sigmoid", gate)), up)
        return self.emit("Add", x, self.emit("MatMul", gated, self.matrix(self.sizes.inner, self.sizes.width)))

    def repeated(self, x: str) -> str:
        """Return keys or values once for each query head."""
        sizes, times = self.sizes, self.sizes.heads // self.sizes.key_heads
        wide = self.emit("Unsqueeze", x, self.ints(2))
        wide = self.emit("Expand", wide, self.ints(1, 1, times, 1, 1))
        return self.emit("Reshape", wide, self.ints(sizes.batch, sizes.heads, -1, sizes.head))

    def model(self) -> onnx.ModelProto:
        sizes = self.sizes
        x = self.emit("Gather", self.matrix(sizes.vocabulary, sizes.width), "input_ids", axis=0)
        (cos, sin), mask = self.angles(), self.mask()
        for number in range(sizes.layers):
            x = self.layer(x, number, cos, sin, mask)
        self.emit("MatMul", self.norm(x), self.matrix(sizes.width, sizes.vocabulary), name="logits")
        info, shape = helper.make_tensor_value_info, [sizes.batch, sizes.tokens]
        inputs = [info(name, TensorProto.INT64, shape) for name in ("input_ids", "position_ids")]
        batch, heads, rows, head = sizes.cache
        past = after = rows
        if sizes.form == CONCAT:
            inputs.append(info("attention_mask", TensorProto.INT64, [batch, "keys"]))
            past, after = "past", "keys"
        inputs += [info(name, TensorProto.FLOAT, [batch, heads, past, head]) for name in sizes.caches]
        outputs = [info("logits", TensorProto.FLOAT, [*shape, sizes.vocabulary])]
        presents = [name.replace("past_key_values", "present") for name in sizes.caches]
        outputs += [info(name, TensorProto.FLOAT, [batch, heads, after, head]) for name in presents]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
        onnx.checker.check_model(model)
        return model

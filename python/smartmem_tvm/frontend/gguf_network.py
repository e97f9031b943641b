# SPDX-License-Identifier: Apache-2.0
"""Networks like Llama as ONNX nodes, from a GGUF file: RMS norms, rotary positions, grouped queries, gated layers.

Weights in codes are operands of ``MatMulNBits`` and ``GatherBlockQuantized`` of ONNX Runtime, whose formats hold theirs
to the bit. A format with minimums, ``w = q s - m``, is two products: ``x w = x (q s) - (sums of x over each group) m``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.gguf_codes import FORMATS, Coded, Format, packed
from smartmem_tvm.frontend.gguf_file import MOST_ROWS, PAIRED, File, Tensor
from smartmem_tvm.frontend.load_weights import Weight, Weights, as_tensor, refuse_more_than_memory
from smartmem_tvm.frontend.onnx_file import Model

_RUNTIME, _OPSET = "com.microsoft", 21
_LOWEST = np.float32(-1e9)
"""What is added to the scores of rows that a token does not see. Chosen: below all scores, and no infinity."""
TOKENS, ROWS = "tokens", "rows"
"""Names of the open dimensions."""


def model_of(file: File) -> Model:
    """Return the network of a file.

    Its inputs are ``input_ids`` and ``position_ids`` of 1 x tokens, and ``past_key_values.0.key``, ... of 1 x heads x
    rows x numbers; its outputs ``logits`` and ``present.0.key``, ...

    Raises
    ------
    UserError
        If a tensor is missing, has another shape, or belongs to nothing here; if the weights exceed the memory.
    """
    return _Writer(file).model()


class _Writer:
    def __init__(self, file: File):
        self.file, self.sizes = file, file.sizes
        self.nodes: list[onnx.NodeProto] = []
        self.small: list[onnx.TensorProto] = []
        self.large: dict[str, Weight] = {}
        self.used: set[str] = set()

    # -- nodes and constants -----------------------------------------------------------------------------------------

    def emit(self, op: str, *inputs: str, name: str = "", domain: str = "", **attributes) -> str:
        """Add a node and return its result."""
        name = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, domain=domain, **attributes))
        return name

    def constant(self, array) -> str:
        """Return a constant of few numbers."""
        name = f"constant_{len(self.small)}"
        self.small.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        """Return a constant of integers."""
        return self.constant(np.array(values, "int64"))

    def weight(self, name: str, shape: tuple[int, ...], dtype: str, make: Callable[[], np.ndarray]) -> str:
        """Return a constant whose numbers are made when they are read."""
        if name not in self.large:
            load = lambda: as_tensor(np.array(np.ascontiguousarray(make(), dtype).reshape(shape)))  # noqa: E731
            self.large[name] = Weight(shape, np.dtype(dtype), load)
        return name

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor of the file, which counts as used."""
        self.used.add(name)
        return self.file.tensor(name, *shape)

    def vector(self, name: str, size: int, order: np.ndarray | None = None) -> str:
        """Return a tensor of one dimension as a constant."""
        values = self.tensor(name, size).floats()
        return self.constant(values if order is None else values[order])

    # -- products and tables -----------------------------------------------------------------------------------------

    def linear(self, x: str, name: str, depth: int, columns: int | None, order: np.ndarray | None = None) -> str:
        """Return the product with a weight of (columns, depth), and the bias if there is one."""
        tensor = self.tensor(f"{name}.weight", columns, depth)
        columns, form = tensor.shape[0], FORMATS.get(tensor.kind)
        if form is None:
            turned = lambda: (tensor.floats() if order is None else tensor.floats()[order]).T  # noqa: E731
            y = self.emit("MatMul", x, self.weight(f"{name}.floats", (depth, columns), "float32", turned))
        else:
            y = self.product(x, tensor, form, order)
        if f"{name}.bias" in self.file.tensors:
            y = self.emit("Add", y, self.vector(f"{name}.bias", columns, order))
        return y

    def product(self, x: str, tensor: Tensor, form: Format, order: np.ndarray | None) -> str:
        """Return the product with a weight in codes."""
        (columns, depth), name = tensor.shape, tensor.name
        groups = depth // form.group
        parts = self.parts(tensor, form, order, (columns, groups, form.group * form.bits // 8), (columns, groups))
        options = {"K": depth, "N": columns, "bits": form.bits, "block_size": form.group}
        y = self.emit("MatMulNBits", x, *parts, domain=_RUNTIME, **options)
        if not form.minimums:
            return y
        least = self.weight(
            f"{name}.turned_minimums", (groups, columns), "float32", lambda: _minimums(tensor, form, order).T
        )
        split = self.emit("Reshape", x, self.ints(0, 0, groups, form.group))
        sums = self.emit("ReduceSum", split, self.ints(-1), keepdims=0)
        return self.emit("Sub", y, self.emit("MatMul", sums, least))

    def parts(
        self, tensor: Tensor, form: Format, order: np.ndarray | None, shape: tuple[int, ...], scales: tuple[int, int]
    ) -> list[str]:
        """Return codes, scales, and zero points where these are not the middle of the codes."""
        coded, name = lambda: _coded(tensor, form, order), f"{tensor.name}.{len(shape)}"
        parts = [
            self.weight(f"{name}.codes", shape, "uint8", lambda: packed(coded().codes, form.bits)),
            self.weight(f"{name}.scales", scales, "float32", lambda: coded().scales),
        ]
        if form.zero != 2 ** (form.bits - 1):
            width = -(-scales[1] * form.bits // 8)
            zeros = lambda: np.zeros((scales[0], width))  # noqa: E731  (the only other zero is 0)
            parts.append(self.weight(f"{name}.zeros", (scales[0], width), "uint8", zeros))
        return parts

    def table(self, name: str, ids: str) -> tuple[str, int]:
        """Return the rows of a table, and how many it has."""
        tensor = self.tensor(name, None, self.sizes.width)
        (count, width), form = tensor.shape, FORMATS.get(tensor.kind)
        if form is None:
            return self.emit("Gather", self.weight(f"{name}.rows", tensor.shape, "float32", tensor.floats), ids), count
        groups = width // form.group
        codes, scales, *zeros = self.parts(tensor, form, None, (count, width * form.bits // 8), (count, groups))
        options = {"bits": form.bits, "block_size": form.group, "gather_axis": 0, "quantize_axis": 1}
        x = self.emit("GatherBlockQuantized", codes, ids, scales, *zeros, domain=_RUNTIME, **options)
        if form.minimums:
            least = self.weight(f"{name}.minimums", (count, groups), "float32", lambda: _minimums(tensor, form, None))
            split = self.emit("Reshape", x, self.ints(0, 0, groups, form.group))
            of_rows = self.emit("Unsqueeze", self.emit("Gather", least, ids), self.ints(3))
            x = self.emit("Reshape", self.emit("Sub", split, of_rows), self.ints(0, 0, width))
        return x, count

    # -- the network -------------------------------------------------------------------------------------------------

    def norm(self, x: str, name: str, size: int) -> str:
        """Return an RMS norm of the last dimension."""
        square = self.emit("ReduceMean", self.emit("Mul", x, x), self.ints(-1), keepdims=1)
        root = self.emit("Sqrt", self.emit("Add", square, self.constant(np.float32(self.sizes.epsilon))))
        return self.emit("Mul", self.emit("Div", x, root), self.vector(f"{name}.weight", size))

    def angles(self) -> tuple[str, str]:
        """Return cosines and sines of the positions, of 1 x 1 x tokens x head."""
        half = self.sizes.head // 2
        rates = 1.0 / (self.sizes.base ** (np.arange(half) / half) * self.sizes.slower)
        if "rope_freqs.weight" in self.file.tensors:
            rates = rates / self.tensor("rope_freqs.weight", half).floats()
        places = self.emit("Cast", self.emit("Unsqueeze", "position_ids", self.ints(1, 3)), to=TensorProto.FLOAT)
        angles = self.emit("Mul", places, self.constant(np.tile(rates, 2).astype("float32")))
        return self.emit("Cos", angles), self.emit("Sin", angles)

    def turned(self, x: str, angles: tuple[str, str]) -> str:
        """Return queries or keys, turned by their positions: number i together with number i + half."""
        half = self.sizes.head // 2
        first = self.emit("Slice", x, self.ints(0), self.ints(half), self.ints(3))
        second = self.emit("Slice", x, self.ints(half), self.ints(2 * half), self.ints(3))
        other = self.emit("Concat", self.emit("Neg", second), first, axis=3)
        return self.emit("Add", self.emit("Mul", x, angles[0]), self.emit("Mul", other, angles[1]))

    def heads(self, x: str, name: str, heads: int, size: int, turns: bool) -> str:
        """Return queries, keys or values as 1 x heads x tokens x numbers."""
        order = _half_by_half(heads, size) if turns and self.file.architecture in PAIRED else None
        x = self.linear(x, name, self.sizes.width, heads * size, order)
        x = self.emit("Reshape", x, self.ints(0, 0, heads, size))
        if turns and f"{name}_norm.weight" in self.file.tensors:
            x = self.norm(x, f"{name}_norm", size)
        return self.emit("Transpose", x, perm=[0, 2, 1, 3])

    def mask(self) -> str:
        """Return what is added to scores, of 1 x 1 x tokens x rows: rows behind a token's place are not seen."""
        count = self.emit("Gather", self.emit("Shape", "past_key_values.0.key"), self.constant(np.int64(2)))
        rows = self.emit("Range", self.constant(np.int64(0)), count, self.constant(np.int64(1)))
        seen = self.emit("LessOrEqual", rows, self.emit("Unsqueeze", "position_ids", self.ints(1, 3)))
        return self.emit("Where", seen, self.constant(np.float32(0)), self.constant(_LOWEST))

    def cached(self, layer: int, part: str, new: str) -> str:
        """Return a cache with new rows, once for each head of queries."""
        places = self.emit("Reshape", "position_ids", self.ints(1, 1, -1, 1))
        every = self.emit("Expand", places, self.emit("Shape", new))
        past, present = f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"
        whole = self.emit("ScatterElements", past, every, new, axis=2, name=present)
        times, size = self.sizes.heads // self.sizes.key_heads, self._head(part)
        if times == 1:
            return whole
        wide = self.emit("Expand", self.emit("Unsqueeze", whole, self.ints(2)), self.ints(1, 1, times, 1, 1))
        return self.emit("Reshape", wide, self.ints(1, self.sizes.heads, -1, size))

    def _head(self, part: str) -> int:
        return self.sizes.head if part == "key" else self.sizes.value

    def layer(self, x: str, number: int, angles: tuple[str, str], mask: str) -> str:
        """Return the tokens after a layer."""
        sizes, block = self.sizes, f"blk.{number}"
        normed = self.norm(x, f"{block}.attn_norm", sizes.width)
        q = self.turned(self.heads(normed, f"{block}.attn_q", sizes.heads, sizes.head, True), angles)
        k = self.turned(self.heads(normed, f"{block}.attn_k", sizes.key_heads, sizes.head, True), angles)
        v = self.heads(normed, f"{block}.attn_v", sizes.key_heads, sizes.value, False)
        keys, values = self.cached(number, "key", k), self.cached(number, "value", v)
        scores = self.emit("MatMul", q, self.emit("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.emit("Mul", scores, self.constant(np.float32(sizes.head**-0.5)))
        weights = self.emit("Softmax", self.emit("Add", scores, mask), axis=-1)
        mixed = self.emit("Transpose", self.emit("MatMul", weights, values), perm=[0, 2, 1, 3])
        mixed = self.emit("Reshape", mixed, self.ints(0, 0, sizes.heads * sizes.value))
        out = self.linear(mixed, f"{block}.attn_output", sizes.heads * sizes.value, sizes.width)
        x = self.emit("Add", x, out)
        normed = self.norm(x, f"{block}.ffn_norm", sizes.width)
        gate, up = (self.linear(normed, f"{block}.ffn_{name}", sizes.width, sizes.inner) for name in ("gate", "up"))
        gated = self.emit("Mul", self.emit("Mul", gate, self.emit("Sigmoid", gate)), up)
        return self.emit("Add", x, self.linear(gated, f"{block}.ffn_down", sizes.inner, sizes.width))

    def model(self) -> Model:
        """Return the network."""
        sizes, file = self.sizes, self.file
        if sizes.heads % sizes.key_heads or sizes.head % 2:
            raise UserError(
                f"{file.name}: {sizes.heads} heads of {sizes.head} numbers do not share {sizes.key_heads} heads of "
                f"keys, or have no halves; convert it again."
            )
        x, count = self.table("token_embd.weight", "input_ids")
        angles, mask = self.angles(), self.mask()
        for number in range(sizes.layers):
            x = self.layer(x, number, angles, mask)
        x = self.norm(x, "output_norm", sizes.width)
        own = "output" if "output.weight" in file.tensors else "token_embd"
        self.emit("Identity", self.linear(x, own, sizes.width, count), name="logits")
        for name in file.tensors.keys() - self.used:
            raise UserError(
                f"{file.name}: tensor '{name}' belongs to no {file.architecture} that is known here; export the "
                f"network as ONNX."
            )
        weights = Weights(self.large)
        refuse_more_than_memory(weights, file.name)
        usual = {TOKENS: 1, ROWS: min(sizes.context, MOST_ROWS)}
        return Model(file.name, self.proto(count), weights, usual=usual)

    def proto(self, count: int) -> onnx.ModelProto:
        """Return the graph, its weights without data."""
        info, number, sizes = helper.make_tensor_value_info, TensorProto.FLOAT, self.sizes
        inputs = [info(name, TensorProto.INT64, [1, TOKENS]) for name in ("input_ids", "position_ids")]
        outputs = [info("logits", number, [1, TOKENS, count])]
        for layer in range(sizes.layers):
            for part in ("key", "value"):
                shape = [1, sizes.key_heads, ROWS, self._head(part)]
                inputs.append(info(f"past_key_values.{layer}.{part}", number, shape))
                outputs.append(info(f"present.{layer}.{part}", number, shape))
        graph = helper.make_graph(self.nodes, self.file.architecture, inputs, outputs, self.small)
        for name, weight in self.large.items():
            kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
            graph.initializer.add(name=name, data_type=kind, dims=weight.shape)
        imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _coded(tensor: Tensor, form: Format, order: np.ndarray | None) -> Coded:
    return form.coded(tensor.blocks(), tensor.shape[0]).rows(order)


def _minimums(tensor: Tensor, form: Format, order: np.ndarray | None) -> np.ndarray:
    return _coded(tensor, form, order).minimums


def _half_by_half(heads: int, size: int) -> np.ndarray:
    """Return the order of rows in which numbers 2 i and 2 i + 1 of each head are i and i + half."""
    return np.arange(heads * size).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)

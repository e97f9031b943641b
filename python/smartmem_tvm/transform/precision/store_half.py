# SPDX-License-Identifier: Apache-2.0
"""StoreHalf: tensors between kernels, and weights, are stored in 16 bits, as float16 or bfloat16."""

from __future__ import annotations

from functools import partial

import ml_dtypes  # noqa: F401  registers the name bfloat16 with numpy
import numpy as np
import tvm
from tvm import ir, relax, tirx

from ...ir.byte_numbers import RANGES as BYTES
from ...ir.codes import is_scale
from ...ir.graph import Graph, Node, append_log, rewrite_graphs
from ...ir.half import FLOAT, HALF, NORMAL, RANGES, exceeds_half, halved
from ...ir.index_map import function_name
from ...ir.kernel import Kernel
from ...ir.pairs import INTEGER
from ...ir.sizes import data_bytes
from ...ir.walk import collect, contains, loads


@tvm.transform.module_pass(opt_level=0, name="smartmem.StoreHalf")
class StoreHalf:
    """Store tensors as half numbers and go on computing in float32.

    Before::

        y = matmul(x, w);   z = softmax(y)                  # y, w: float32

    After::

        y' = half(matmul(x, float(w')));   z = softmax(float(y'))     # y', w': float16

    Writers round when they store and readers widen when they load; this pass rounds the weights. A tensor stays
    float32, and the log says why, if

    1. it is an input or a result of the function, or a call without loop structure writes or reads it,
    2. it holds a number that the type cannot hold: a summand of a mask, or a weight,
    3. a reader casts it to integers, and does not quantize it: positions are not rounded,
    4. it is a scale or a bias of a kernel that adds up integers, or whose results are bytes.

    Intermediate values beyond 65504 become infinite in float16, as in any network in half precision; bfloat16 has
    float32's range.

    Parameters
    ----------
    dtype : str
        ``float16`` or ``bfloat16``.
    refusal : str
        Reason why the target cannot store such numbers; then everything stays float32, and the log says so.
    weights : bool
        Whether weights are stored in `dtype`, too.
    """

    def __init__(self, dtype: str = HALF, refusal: str = "", weights: bool = True):
        self.dtype, self.refusal, self.weights = dtype, refusal, weights

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        if self.refusal:
            return append_log(mod, [{"pass": "StoreHalf", "tensor": "all", "stored": FLOAT, "reason": self.refusal}])
        return rewrite_graphs(mod, partial(store_half, dtype=self.dtype, round_weights=self.weights))


def store_half(graph: Graph, dtype: str = HALF, round_weights: bool = True) -> list[dict]:
    """Rewrite `graph` in place; return a decision for each tensor and each weight of float32."""
    weights = _Weights(dtype)
    if round_weights:
        weights.replace_in(graph)
    log, beyond, largest = weights.log, set(), RANGES[dtype]
    for node in graph:
        if _dtype(node.var.ty) != FLOAT:
            continue
        if node.kernel is not None and exceeds_half(node.kernel, weights.inputs_beyond(node, beyond), largest):
            beyond.add(node.var)
        reason = _objection(graph, node, beyond, largest)
        if reason is None:
            _store(graph, node, dtype)
        log.append(_decision(node.var.name, data_bytes(node.var.ty), dtype, reason))
    return log


def _objection(graph: Graph, node: Node, beyond: set, largest: float) -> str | None:
    readers = graph.readers(node.var)
    if graph.is_output(node.var):
        return "it is a result of the function"
    if node.kernel is None or len(node.kernel.outputs) != 1 or any(reader.kernel is None for reader in readers):
        return "it is made or read by something without loop structure"
    if node.var in beyond:
        return f"a number beyond {largest:.6g} goes into it"
    if any(_makes_integers(reader, node.var) for reader in readers):
        return "a reader makes integers of it"
    return None


def _store(graph: Graph, node: Node, dtype: str) -> None:
    """Let `node` write, and all its readers read, numbers of 16 bits."""
    readers = graph.readers(node.var)
    node.kernel, buffer = halved(node.kernel, node.kernel.outputs[0], dtype)
    for reader in readers:
        for position, arg in enumerate(reader.args):
            if arg.same_as(node.var):
                reader.kernel, _ = halved(reader.kernel, reader.kernel.inputs[position], dtype)
    graph.rename(node, relax.DataflowVar(node.var.name, relax.TensorType(list(buffer.shape), dtype)))


class _Weights:
    """The constants of kernels; a constant that several kernels read is rounded once."""

    def __init__(self, dtype: str):
        self.dtype, self.largest = dtype, RANGES[dtype]
        self.halves: dict = {}
        self.small: set = set()  # those that stay float32 for numbers near zero
        self.log: list[dict] = []

    def inputs_beyond(self, node: Node, tensors: set) -> list:
        """Return the inputs of a kernel with numbers that float16 cannot hold: those of `tensors`, and weights."""

        def is_beyond(arg) -> bool:
            if isinstance(arg, ir.Constant):
                lost = arg.value in self.halves and self.halves[arg.value] is None
                return lost and arg.value not in self.small
            return arg in tensors

        return [b for b, arg in zip(node.kernel.inputs, node.args, strict=True) if is_beyond(arg)]

    def replace_in(self, graph: Graph) -> None:
        """Round the constants that float16 can hold."""
        for node in graph:
            for position, arg in enumerate(node.args if node.kernel is not None else ()):
                half = self._half(arg, node, position) if isinstance(arg, ir.Constant) else None
                if half is not None:
                    node.kernel, _ = halved(node.kernel, node.kernel.inputs[position], self.dtype)
                    node.args[position] = half

    def _objection(self, tensor, kernel: Kernel, position: int) -> str | None:
        """Return why a constant is not rounded; None if it is."""
        sizes = np.abs(tensor.numpy())
        if not (sizes <= self.largest).all():
            return f"it has numbers beyond {self.largest:.6g}"
        near = self.dtype == HALF and bool(((sizes > 0) & (sizes < NORMAL)).any())
        if near and is_scale(kernel, kernel.inputs[position]):
            self.small.add(tensor)
            return f"scales of codes below {NORMAL:.2g} would lose digits"
        if tensor.numpy().size == max(tensor.shape, default=1) and _counts(kernel):
            self.small.add(tensor)
            return "scales and biases of integers keep their digits"
        return None

    def _half(self, constant, node: Node, position: int):
        if _dtype(constant.ty) != FLOAT:
            return None
        tensor = constant.value
        if tensor not in self.halves:
            array = tensor.numpy()
            reason = self._objection(tensor, node.kernel, position)
            self.halves[tensor] = None if reason else _constant(array, self.dtype)
            name = f"weight {position} of {node.var.name}"
            self.log.append(_decision(name, array.nbytes, self.dtype, reason))
        return self.halves[tensor]


def _counts(kernel: Kernel) -> bool:
    """Whether a kernel adds up integers, or its results are bytes."""
    sums = [
        stage.body.buffer for stage in kernel.stages if stage.reduction and isinstance(stage.body, tirx.BufferStore)
    ]
    return any(str(b.dtype) in BYTES for b in kernel.outputs) or any(str(b.dtype) == INTEGER for b in sums)


def _makes_integers(reader: Node, var) -> bool:
    """Whether a kernel casts elements of `var` to integers, and does not quantize them."""
    buffers = [b for b, arg in zip(reader.kernel.inputs, reader.args, strict=True) if arg.same_as(var)]
    casts = [cast for stage in reader.kernel.stages for cast in collect(stage.body, tirx.Cast)]
    casts = [cast for cast in casts if "int" in str(cast.ty.dtype) and not contains(cast.value, ir.Call, _rounds)]
    cast_loads = [load for cast in casts for load in loads(cast.value)]
    return any(load.source.same_as(buffer) for load in cast_loads for buffer in buffers)


def _rounds(call: ir.Call) -> bool:
    return function_name(call) == "nearbyint"


def _dtype(ty) -> str:
    return str(getattr(ty, "dtype", ""))


def _constant(array: np.ndarray, dtype: str) -> relax.Constant:
    return relax.const(array.astype(np.dtype(dtype)), dtype)


def _decision(tensor: str, size: int, dtype: str, reason: str | None) -> dict:
    half = {"stored": dtype, "bytes": size // 2} if reason is None else {"stored": FLOAT, "bytes": size}
    return {"pass": "StoreHalf", "tensor": tensor, **half, **({"reason": reason} if reason else {})}

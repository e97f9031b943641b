# SPDX-License-Identifier: Apache-2.0
"""StoreHalf: tensors between kernels, and weights, take half the memory."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax, tirx

from ..analysis.facts import tensor_bytes
from ..ir.graph import Graph, Node, rewrite_graphs
from ..ir.half import FLOAT, HALF, LARGEST, exceeds_half, halved
from ..ir.walk import collect, loads


@tvm.transform.module_pass(opt_level=0, name="smartmem.StoreHalf")
class StoreHalf:
    """Store tensors as half numbers and go on computing in float32.

    Before::

        y = matmul(x, w);   z = softmax(y)                  # y, w: float32

    After::

        y' = half(matmul(x, float(w')));   z = softmax(float(y'))     # y', w': float16

    Writers round when they store and readers widen when they load; weights are rounded here. A tensor stays float32,
    and the log says why, if

    1. it is an input or a result of the function, or made or read by something without loop structure,
    2. a number that half cannot hold goes into it: what a mask adds, or a weight,
    3. a reader makes integers of it: positions are not rounded.

    What the data make larger than 65504 becomes infinite, as in any network in half precision.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, store_half)


def store_half(graph: Graph) -> list[dict]:
    """Rewrite `graph` in place; returns a decision for each tensor and each weight of float32."""
    weights = _Weights()
    weights.replace_in(graph)
    log, beyond = weights.log, set()
    for node in graph:
        if _dtype(node.var.ty) != FLOAT:
            continue
        if node.kernel is not None and exceeds_half(node.kernel, weights.inputs_beyond(node, beyond)):
            beyond.add(node.var)
        reason = _objection(graph, node, beyond)
        if reason is None:
            _store(graph, node)
        log.append(_decision(node.var.name, tensor_bytes(node.var.ty), reason))
    return log


def _objection(graph: Graph, node: Node, beyond: set) -> str | None:
    readers = graph.readers(node.var)
    if graph.is_output(node.var):
        return "it is a result of the function"
    if node.kernel is None or len(node.kernel.outputs) != 1 or any(reader.kernel is None for reader in readers):
        return "it is made or read by something without loop structure"
    if node.var in beyond:
        return f"a number beyond {LARGEST:.0f} goes into it"
    if any(_makes_integers(reader, node.var) for reader in readers):
        return "a reader makes integers of it"
    return None


def _store(graph: Graph, node: Node) -> None:
    """Let `node` write, and all its readers read, halves."""
    readers = graph.readers(node.var)
    node.kernel, buffer = halved(node.kernel, node.kernel.outputs[0])
    for reader in readers:
        for position, arg in enumerate(reader.args):
            if arg.same_as(node.var):
                reader.kernel, _ = halved(reader.kernel, reader.kernel.inputs[position])
    graph.rename(node, relax.DataflowVar(node.var.name, relax.TensorType(list(buffer.shape), HALF)))


class _Weights:
    """Constants of kernels; one that several of them read is rounded once."""

    def __init__(self):
        self.halves: dict = {}
        self.log: list[dict] = []

    def inputs_beyond(self, node: Node, tensors: set) -> list:
        """Inputs of a kernel with numbers that half cannot hold: those of `tensors`, and weights."""

        def is_beyond(arg) -> bool:
            if isinstance(arg, ir.Constant):
                return arg.value in self.halves and self.halves[arg.value] is None
            return arg in tensors

        return [b for b, arg in zip(node.kernel.inputs, node.args, strict=True) if is_beyond(arg)]

    def replace_in(self, graph: Graph) -> None:
        """Round the constants that half can hold."""
        for node in graph:
            for position, arg in enumerate(node.args if node.kernel is not None else ()):
                half = self._half(arg, node, position) if isinstance(arg, ir.Constant) else None
                if half is not None:
                    node.kernel, _ = halved(node.kernel, node.kernel.inputs[position])
                    node.args[position] = half

    def _half(self, constant, node: Node, position: int):
        if _dtype(constant.ty) != FLOAT:
            return None
        tensor = constant.value
        if tensor not in self.halves:
            array = tensor.numpy()
            fits = bool((np.abs(array) <= LARGEST).all())
            self.halves[tensor] = relax.const(array.astype(HALF), HALF) if fits else None
            reason = None if fits else f"it has numbers beyond {LARGEST:.0f}"
            name = f"weight {position} of {node.var.name}"
            self.log.append(_decision(name, array.nbytes, reason))
        return self.halves[tensor]


def _makes_integers(reader: Node, var) -> bool:
    """Whether a kernel casts what it reads of `var` to integers."""
    buffers = [b for b, arg in zip(reader.kernel.inputs, reader.args, strict=True) if arg.same_as(var)]
    casts = [cast for stage in reader.kernel.stages for cast in collect(stage.body, tirx.Cast)]
    cast_loads = [load for cast in casts if "int" in str(cast.ty.dtype) for load in loads(cast.value)]
    return any(load.source.same_as(buffer) for load in cast_loads for buffer in buffers)


def _dtype(ty) -> str:
    return str(getattr(ty, "dtype", ""))


def _decision(tensor: str, size: int, reason: str | None) -> dict:
    half = {"stored": HALF, "bytes": size // 2} if reason is None else {"stored": FLOAT, "bytes": size}
    return {"pass": "StoreHalf", "tensor": tensor, **half, **({"reason": reason} if reason else {})}

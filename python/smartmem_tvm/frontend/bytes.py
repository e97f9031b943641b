# SPDX-License-Identifier: Apache-2.0
"""Keep the tensors of narrow types (`smartmem_tvm.narrow`) of a graph in bytes, before TVM's importer reads it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.narrow import is_narrow, storage_of, to_bytes

# ONNX's number of each narrow type -> its name.
_NAMES = {
    number: str(helper.tensor_dtype_to_np_dtype(number)) for number in onnx.TensorProto.DataType.values() if number
}
NARROW = {number: name for number, name in _NAMES.items() if is_narrow(name)}
# The attribute with the types that a node's inputs have in the file (0 for those that are not narrow).
TYPES = "smartmem_types"

_CASTS = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "BitCast"})
_MOVES = walk.LAYOUT_OPERATORS | {"Constant", "ConstantOfShape", "If", "Where"}
_KNOWS = _CASTS | _MOVES | {"Shape", "Size", "GatherBlockQuantized", "MatMulNBits"}


def keep_in_bytes(model: onnx.ModelProto, name: str) -> dict[str, str]:
    """Turn each tensor of a narrow type into bytes, in place, and return name -> type of those tensors.

    Casts and quantizations get the types of their inputs in the attribute `TYPES`.

    Raises
    ------
    UserError
        If an operator that reads a tensor of a narrow type neither moves nor converts it.
    """
    kept = _Keeper(name)
    kept.graph(model.graph)
    return {tensor: NARROW[number] for tensor, number in kept.types.items()}


class _Keeper:
    def __init__(self, model_name: str):
        self.model_name = model_name
        self.types: dict[str, int] = {}  # tensor -> ONNX's number of its type

    def graph(self, graph: onnx.GraphProto) -> None:
        """Go through a graph in its order, and through the graphs nested in it."""
        for tensor in graph.initializer:
            self._note([tensor.name], _in_bytes(tensor))
        for value in graph.input:
            self._note([value.name], value.type.tensor_type.elem_type)
        for node in graph.node:
            self._node(node)
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type
            if kind.elem_type in NARROW:
                kind.elem_type = _storage(kind.elem_type)
        del graph.value_info[:]

    def _note(self, names, number: int) -> None:
        if number in NARROW:
            self.types.update({name: number for name in names if name})

    def _node(self, node: onnx.NodeProto) -> None:
        types = [self.types.get(name, 0) for name in node.input]
        if any(types) and node.op_type.rsplit(".", 1)[-1] not in _KNOWS:
            dtype = NARROW[next(filter(None, types))]
            raise UserError(
                f"{self.model_name}: operator {node.op_type} (node {walk.node_label(node)}) reads {dtype}, which is "
                f"only moved, cast and quantized here; cast it to a type that has arithmetic first."
            )
        tensors = [self._attribute(attribute) for attribute in node.attribute]
        if node.op_type in _CASTS or "." in node.op_type:
            self._note(node.output, _result_of_cast(node, types))
            if any(types):
                node.attribute.append(helper.make_attribute(TYPES, types))
        elif node.op_type in _MOVES:
            self._note(node.output, next(filter(None, [*types, *tensors]), 0))

    def _attribute(self, attribute: onnx.AttributeProto) -> int:
        """Go through the graphs and tensors of an attribute; return the narrow type that it gives the results, or 0."""
        if attribute.HasField("t"):
            return _in_bytes(attribute.t)
        results = [0]
        for nested in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            results += [value.type.tensor_type.elem_type for value in nested.output]
            self.graph(nested)
        return next((number for number in results if number in NARROW), 0)


def _storage(number: int) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(storage_of(NARROW[number])))


def _in_bytes(tensor: onnx.TensorProto) -> int:
    """Turn a stored tensor of a narrow type into bytes, in place; return the type that it had."""
    number = tensor.data_type
    if number in NARROW:
        tensor.CopyFrom(numpy_helper.from_array(to_bytes(numpy_helper.to_array(tensor)), tensor.name))
    return number


def _result_of_cast(node: onnx.NodeProto, types: list[int]) -> int:
    attributes = {each.name: each.i for each in node.attribute if each.type == onnx.AttributeProto.INT}
    like = {"CastLike": 1, "QuantizeLinear": 2, "com.microsoft.QuantizeLinear": 2}.get(node.op_type)
    given = attributes.get("to") or attributes.get("output_dtype")
    return given or (types[like] if like is not None and len(types) > like else 0)

# SPDX-License-Identifier: Apache-2.0
"""Change the short floating types of a graph to a longer one: operators compute in it, and casts no longer round."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx
from onnx import TensorProto

from smartmem_tvm.frontend.walk_graph import graphs, tensors
from smartmem_tvm.light import has_data

_TYPES = ("to", "dtype", "output_dtype")  # attributes that name one


def widen(model: onnx.ModelProto, kinds: Collection[int], wide: int) -> onnx.ModelProto:
    """Return a copy of a model in which values of the types `kinds` have the type `wide`.

    Parameters
    ----------
    kinds, wide : int
        ONNX's numbers of types. Initializers without data get the type; the caller converts their values.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(wide)
    for tensor in tensors(proto.graph):
        if tensor.data_type not in kinds:
            continue
        if has_data(tensor):
            array = onnx.numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        tensor.data_type = wide
    for graph in graphs(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in kinds:
                value.type.tensor_type.elem_type = wide
    for attribute in attributes(proto):
        if attribute.name in _TYPES and attribute.i in kinds:
            attribute.i = wide
    return proto


def has_type(model: onnx.ModelProto, kind: int) -> bool:
    """Whether a model takes, gives or holds numbers of a type, or casts to it."""
    values = (value for graph in graphs(model.graph) for value in (*graph.input, *graph.output))
    return (
        any(value.type.tensor_type.elem_type == kind for value in values)
        or any(tensor.data_type == kind for tensor in tensors(model.graph))
        or any(each.name in _TYPES and each.i == kind for each in attributes(model))
    )


def attributes(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """Yield the attributes of all nodes of the model's graphs and functions."""
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    return (each for node in nodes for each in node.attribute)


SHORT = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16))
"""The floating types that a double holds exactly."""

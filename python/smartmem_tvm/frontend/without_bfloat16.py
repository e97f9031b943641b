# SPDX-License-Identifier: Apache-2.0
"""A model of bfloat16 in float32: ONNX Runtime has hardly a kernel for bfloat16 on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import tvm
from onnx import TensorProto

from smartmem_tvm.frontend.graph import graphs, tensors
from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.frontend.weights import Weight, Weights
from smartmem_tvm.light import has_data

_TYPES = ("to", "dtype", "output_dtype")  # attributes that name one


def has_bfloat16(model: onnx.ModelProto) -> bool:
    """Whether a model takes, gives or holds such numbers, or casts to them."""
    values = (value for graph in graphs(model.graph) for value in (*graph.input, *graph.output))
    return (
        any(_is_bfloat16(value.type) for value in values)
        or any(tensor.data_type == TensorProto.BFLOAT16 for tensor in tensors(model.graph))
        or any(_names_bfloat16(each) for graph in graphs(model.graph) for node in graph.node for each in node.attribute)
    )


def without_bfloat16(model: Model) -> Model:
    """The same numbers in float32, and operators that compute in it; casts to bfloat16 round nothing any more."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in tensors(proto.graph):
        if tensor.data_type == TensorProto.BFLOAT16:
            _widen(tensor)
    for graph in graphs(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if _is_bfloat16(value.type):
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for attribute in (each for node in graph.node for each in node.attribute):
            if _names_bfloat16(attribute):
                attribute.i = TensorProto.FLOAT
    return Model(model.name, proto, _wide_weights(model.weights))


def _is_bfloat16(given: onnx.TypeProto) -> bool:
    return given.tensor_type.elem_type == TensorProto.BFLOAT16


def _names_bfloat16(attribute: onnx.AttributeProto) -> bool:
    return attribute.name in _TYPES and attribute.i == TensorProto.BFLOAT16


def _widen(tensor: TensorProto) -> None:
    if has_data(tensor):
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype("float32"), tensor.name))
    tensor.data_type = TensorProto.FLOAT


def _wide_weights(weights: Weights) -> Weights:
    def widened(name: str) -> Callable[[], tvm.runtime.Tensor]:
        return lambda: tvm.runtime.tensor(weights.array(name).astype("float32"))

    float32 = np.dtype("float32")
    return Weights(
        {
            name: Weight(each.shape, float32, widened(name)) if each.dtype == ml_dtypes.bfloat16 else each
            for name, each in weights.all.items()
        }
    )

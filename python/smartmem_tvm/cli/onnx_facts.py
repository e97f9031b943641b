# SPDX-License-Identifier: Apache-2.0
"""Facts about the ONNX graph as given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

LAYOUT_OPERATORS = frozenset(
    (
        "CenterCropPad",
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "ReverseSequence",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    )
)


def computes_in_half(model: onnx.ModelProto) -> bool:
    """Whether anything in a model is in half precision: an input, a stored tensor, or what a Cast makes."""
    from onnx import TensorProto

    from ..frontend.graph import nodes, tensors

    half = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    types = {value.type.tensor_type.elem_type for value in model.graph.input}
    types |= {tensor.data_type for tensor in tensors(model.graph)}
    types |= {each.i for node in nodes(model.graph) if node.op_type == "Cast" for each in node.attribute}
    return not half.isdisjoint(types)


def count_nodes(model: onnx.ModelProto) -> tuple[int, int]:
    """Nodes of a model, nested graphs included, and how many of them only move data."""
    from ..frontend.graph import nodes

    types = [node.op_type for node in nodes(model.graph)]
    return len(types), sum(each in LAYOUT_OPERATORS for each in types)

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


def count_nodes(model: onnx.ModelProto) -> tuple[int, int]:
    """Nodes of a model, nested graphs included, and how many of them only move data."""
    from ..frontend.graph import nodes

    types = [node.op_type for node in nodes(model.graph)]
    return len(types), sum(each in LAYOUT_OPERATORS for each in types)

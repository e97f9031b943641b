# SPDX-License-Identifier: Apache-2.0
"""Facts about the ONNX file as given, and ONNX Runtime's answer to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import onnx

_PROTOBUF_LIMIT = 2**31 - 1  # bytes

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


def read_header(path: str) -> onnx.ModelProto:
    """The model of a file that the front end has accepted, as it is: no external data, no weights drawn."""
    import onnx

    return onnx.load_model(path, load_external_data=False)


def count_nodes(model: onnx.ModelProto) -> tuple[int, int]:
    """Nodes of a model, nested graphs included, and how many of them only move data."""
    from ..frontend.graph import nodes

    types = [node.op_type for node in nodes(model.graph)]
    return len(types), sum(each in LAYOUT_OPERATORS for each in types)


def run_onnxruntime(path: str, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes from the same file; a light model is filled first.

    Raises
    ------
    UserError
        If ONNX Runtime refuses the model.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(_source(path), settings, providers=["CPUExecutionProvider"])
        return session.run(None, dict(arrays))
    except Exception as err:  # onnxruntime's exceptions share no base class of their own
        reason = " ".join(str(err).split()).rstrip(".")
        raise UserError(f"ONNX Runtime cannot run {path} ({reason}), so there is nothing to compare with.") from err


def _source(path: str) -> str | bytes:
    """The complete model, or the file where that is too large for one message."""
    from ..frontend.onnx_file import read

    # Not always the file: ONNX Runtime cannot fold small tensors that are in another file, nor fill a light model.
    model = read(path)
    return model.SerializeToString() if model.ByteSize() < _PROTOBUF_LIMIT else str(path)

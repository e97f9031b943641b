# SPDX-License-Identifier: Apache-2.0
"""Systems of other projects, one file each, and their shared functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import UserError

if TYPE_CHECKING:
    import onnx

    from ....frontend import Model


def missing_package(system: str, error: ImportError) -> UserError:
    """Return the error for a system whose package is not installed."""
    return UserError(f'{system} is not installed ({error}); run `pip install "smartmem-tvm[peers]"`.')


def model_of(request: dict) -> Model:
    """Return the model of a request, with its batch, and with caches of as many rows as it says.

    Raises
    ------
    UserError
        As `frontend.read_model`.
    """
    from ....frontend import read_model

    more = {"values": request.get("values"), "rows": request.get("rows")}
    return read_model(request["path"], request["shapes"], request.get("batch"), **more)


def complete_model(request: dict) -> onnx.ModelProto:
    """Return the model of a request as all systems get it: with known sizes, and data in every initializer.

    Raises
    ------
    UserError
        As `frontend.read_model`, or if the weights do not fit into one ONNX model.
    """
    from ....frontend.onnx_file import refuse_more_than_protobuf

    model = model_of(request)
    refuse_more_than_protobuf(model)
    model.weights.fill(model.proto)
    return model.proto

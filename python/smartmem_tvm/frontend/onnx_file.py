# SPDX-License-Identifier: Apache-2.0
"""Reads an ONNX model: the file, its external data, the weights of a light model, the checks."""

from os import PathLike
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from smartmem_tvm import light
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import graph as walk

_PROTOBUF_LIMIT = 2**31 - 1  # bytes; the checker cannot serialize more


def display_name(source: str | PathLike | onnx.ModelProto) -> str:
    """Return what messages call the model: the path, or the graph's name for a model in memory."""
    if isinstance(source, onnx.ModelProto):
        return source.graph.name or "the model"
    return str(source)


def read(source: str | PathLike | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with all its weights inside, not yet checked; one in memory is copied, not changed.

    Raises
    ------
    UserError
        See `smartmem_tvm.frontend.load_onnx`.
    """
    name = display_name(source)
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
    else:
        model = _parse(Path(source))
    _check_header(model, name)
    folder = None if isinstance(source, onnx.ModelProto) else Path(source).parent
    _load_external_data(model, folder, name)
    if light.is_light(model):
        model = light.fill(model)
    return model


def _parse(path: Path) -> onnx.ModelProto:
    if not path.exists():
        raise UserError(f"{path}: no such file; give the path of an ONNX model.")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the path of an ONNX model.")
    try:
        return onnx.load_model(path, load_external_data=False)
    except OSError as err:
        raise UserError(f"{path} cannot be read ({err.strerror}); check its permissions.") from err
    except (DecodeError, ValueError) as err:  # ValueError: the text formats, which onnx picks by suffix
        raise UserError(f"{path} is truncated or not an ONNX model; export or copy it again.") from err


def _check_header(model: onnx.ModelProto, name: str) -> None:
    if not model.ir_version or not model.HasField("graph"):
        raise UserError(f"{name} is not an ONNX model or an empty one; export or copy it again.")
    if not model.graph.node or not model.graph.output:
        raise UserError(f"{name} has an empty graph, without nodes or outputs; export it again.")
    if model.ir_version > onnx.IR_VERSION:
        raise UserError(
            f"{name} has ONNX IR version {model.ir_version}, newer than the {onnx.IR_VERSION} known to "
            f"onnx {onnx.__version__}; upgrade onnx or export with an older IR version."
        )
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise UserError(
                f"{name} uses ONNX opset {opset.version}, newer than the {newest} known to "
                f"onnx {onnx.__version__}; upgrade onnx or export with opset {newest} or older."
            )


def _load_external_data(model: onnx.ModelProto, folder: Path | None, name: str) -> None:
    external = [tensor for tensor in walk.tensors(model.graph) if uses_external_data(tensor)]
    if not external:
        return
    if folder is None:
        raise UserError(f"{name} keeps weights in external files; give the path of the model, not the model.")
    for location in sorted({_location(tensor) for tensor in external}):
        _check_location(folder, location, name)
    try:
        load_external_data_for_model(model, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as err:
        raise UserError(
            f"{name}: the external data cannot be read ({_one_line(err)}); export or copy it again."
        ) from err


def _location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _check_location(folder: Path, location: str, name: str) -> None:
    """Refuse external data that is missing or outside the model's folder (a file may come from anyone)."""
    inside = (
        location
        and not PurePosixPath(location).is_absolute()
        and not PureWindowsPath(location).anchor
        and ".." not in (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
        and (folder / location).resolve().is_relative_to(folder.resolve())
    )
    if not inside:
        raise UserError(
            f"{name} refers to external data at '{location}', outside the model's own folder; "
            f"keep the data next to the model and refer to it by a relative path."
        )
    if not (folder / location).is_file():
        raise UserError(f"{name} needs the external data file '{location}'; put it next to the model.")


def check_graph(model: onnx.ModelProto, name: str) -> None:
    """Refuse a graph that breaks the rules of ONNX; with weights past protobuf's limit it is not checked."""
    if model.ByteSize() > _PROTOBUF_LIMIT:
        return
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as err:
        raise UserError(f"{name} is not a valid ONNX graph ({_one_line(err)}); export it again.") from err


def check_tensors(model: onnx.ModelProto, name: str) -> None:
    """Refuse tensors whose raw bytes do not fit their shape, which the ONNX checker lets pass."""
    for tensor in walk.tensors(model.graph):
        if not tensor.HasField("raw_data"):
            continue
        try:
            onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as err:
            raise UserError(
                f"{name}: the data of tensor '{tensor.name}' does not fit its shape {list(tensor.dims)}; "
                f"the file is damaged, export or copy it again."
            ) from err


def _one_line(err: Exception) -> str:
    """Return an error's text as one sentence without a final full stop."""
    return " ".join(str(err).split()).rstrip(".")

# SPDX-License-Identifier: Apache-2.0
"""Read and check an ONNX model: the file, its external data, the weights of a light model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from os import PathLike
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from smartmem_tvm import light
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.load_weights import Weight, Weights, drawn, mapped, refuse_more_than_memory, stored
from smartmem_tvm.frontend.spec import Spec

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from smartmem_tvm.frontend.growing_caches import Original

LARGE = 2**16  # bytes; smaller tensors stay in the graph at no cost
_LONGEST_NAME = 100  # characters of a name in a message
_DIGITS = 20  # digits of a number of bytes

# ONNX's number for each type that numpy itself has.
_DTYPES = {
    onnx.helper.np_dtype_to_tensor_dtype(np.dtype(code)): np.dtype(code)
    for code in ("?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
}


def display_name(source: str | PathLike | onnx.ModelProto) -> str:
    """Return the model's name in messages: the path, or the graph's name for a model in memory."""
    if isinstance(source, onnx.ModelProto):
        return source.graph.name or "the model"
    return str(source)


@dataclass(frozen=True)
class Model:
    """An ONNX model: its graph, and its large weights outside of it.

    Attributes
    ----------
    name : str
        The model's name in messages.
    proto : onnx.ModelProto
        The model. Initializers named in `weights` have a name, a type and a shape here, but no data.
    weights : Weights
        Their values, loaded when they are read.
    program : torch.export.ExportedProgram or None
        The program from which torch's exporter made the model.
    values : mapping
        Inputs that became constants of `proto` because the user gave them a value: name -> array.
    path : Path or None
        The file, if other programs read the same model from it.
    usual : mapping
        Name of an open dimension -> its number where no shape gives one.
    original : Original or None
        The model with caches that grow, if this one has caches of a capacity in their place.
    """

    name: str
    proto: onnx.ModelProto
    weights: Weights
    program: ExportedProgram | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    path: Path | None = None
    usual: Mapping[str, int] = field(default_factory=dict)
    original: Original | None = None

    @property
    def inputs(self) -> Spec:
        """Input name -> (shape, dtype), in the model's order, once its dimensions are numbers."""
        types = {value.name: value.type.tensor_type for value in self.proto.graph.input}
        return {
            name: (
                tuple(dim.dim_value for dim in kind.shape.dim),
                str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)),
            )
            for name, kind in types.items()
        }


def read(source: str | PathLike | onnx.ModelProto) -> Model:
    """Return a model, not yet checked; one in memory is not changed.

    Raises
    ------
    UserError
        See `smartmem_tvm.frontend.load_onnx`.
    """
    name = display_name(source)
    in_memory = isinstance(source, onnx.ModelProto)
    given = source if in_memory else _parse(Path(source))
    _check_texts(given, name)
    _check_header(given, name)
    recipes = light.read_recipes(given) if light.is_light(given) else {}
    external = [tensor for tensor in walk.tensors(given.graph) if uses_external_data(tensor)]
    if external and in_memory:
        raise UserError(f"{name} keeps weights in external files; give the path of the model, not the model.")
    folder = None if in_memory else Path(source).parent
    for location in sorted({_external(tensor)["location"] for tensor in external}):
        _check_location(folder, location, name)
    for tensor in walk.stored_tensors(given):
        if any(size < 0 for size in tensor.dims):
            raise _damaged(tensor, name)
    weights = Weights({tensor.name: _weight(tensor, folder, recipes, name) for tensor in _large(given.graph)})
    refuse_more_than_memory(weights, name)
    proto = light.without_data(given, weights)
    _complete(proto, folder, recipes, weights, name)
    return Model(name, proto, weights, path=None if in_memory or recipes else Path(source))


def _large(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the initializers that are large enough to store outside of the graph and that numpy can read in place."""
    for tensor in graph.initializer:
        dtype = _DTYPES.get(tensor.data_type)
        if dtype and prod(tensor.dims) * dtype.itemsize > LARGE and not light.holds_lists(tensor):
            yield tensor


def _weight(tensor: onnx.TensorProto, folder: Path | None, recipes: dict[str, light.Recipe], name: str) -> Weight:
    """Return the source of a large initializer's values without reading them."""
    shape, dtype = tuple(tensor.dims), _DTYPES[tensor.data_type]
    if tensor.name in recipes:
        return drawn(recipes[tensor.name], shape, dtype)
    if not uses_external_data(tensor):
        if len(tensor.raw_data) != prod(shape) * dtype.itemsize:
            raise _damaged(tensor, name)
        return stored(tensor, shape, dtype)
    path, offset, _ = _place(tensor, folder, prod(shape) * dtype.itemsize, name)
    return mapped(path, offset, shape, dtype)


def _place(tensor: onnx.TensorProto, folder: Path, needed: int | None, name: str) -> tuple[Path, int, int]:
    """Return file, offset and length of external data; for a type that numpy lacks, the length is the file's."""
    entries = _external(tensor)
    path = folder / entries["location"]
    there = path.stat().st_size
    offset = entries.get("offset", "0")
    length = entries.get("length", str(needed if needed is not None else there))
    whole = all(len(each) < _DIGITS and each.isascii() and each.isdecimal() for each in (offset, length))
    if not whole or int(offset) + int(length) > there or int(length) != (int(length) if needed is None else needed):
        raise UserError(
            f"{name}: the external data cannot be read, '{entries['location']}' does not hold the "
            f"{'' if needed is None else f'{needed} '}bytes of tensor '{tensor.name}' at {offset}; export or copy it "
            f"again."
        )
    return path, int(offset), int(length)


def _complete(
    model: onnx.ModelProto, folder: Path | None, recipes: dict[str, light.Recipe], apart: Weights, name: str
) -> None:
    """Put all data except the large weights into the model, in place."""
    for tensor in model.graph.initializer:
        if tensor.name in recipes and tensor.name not in apart:
            values = recipes[tensor.name].draw(tuple(tensor.dims))
            tensor.raw_data = values.astype(light.DTYPES[tensor.data_type], copy=False).tobytes()
    light.drop_recipes(model)
    try:
        for tensor in filter(uses_external_data, walk.tensors(model.graph)):
            dtype = _DTYPES.get(tensor.data_type)
            _place(tensor, folder, prod(tensor.dims) * dtype.itemsize if dtype else None, name)
            load_external_data_for_tensor(tensor, str(folder))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    except (OSError, ValueError, onnx.checker.ValidationError) as err:
        raise UserError(
            f"{name}: the external data cannot be read ({one_line(err)}); export or copy it again."
        ) from err


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


def _check_texts(model: onnx.ModelProto, name: str) -> None:
    """Refuse names that are not text: protobuf accepts them, and returns them as bytes or fails."""
    try:
        for text in walk.texts(model):
            if not isinstance(text, str):
                raise UserError(f"{name} has the name {text[:_LONGEST_NAME]!r} in it, not UTF-8; export it again.")
    except UnicodeDecodeError as err:
        raise UserError(f"{name} has a text in it that is not UTF-8 ({one_line(err)}); export it again.") from err


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


def _external(tensor: onnx.TensorProto) -> dict[str, str]:
    return {"location": "", **{entry.key: entry.value for entry in tensor.external_data}}


def _check_location(folder: Path, location: str, name: str) -> None:
    """Refuse external data that is missing or outside the model's folder (a file may come from anyone)."""
    try:
        inside, there = _is_inside(folder, location), (folder / location).is_file()
    except (OSError, ValueError, RuntimeError):  # impossible file names, and links in a circle
        inside = there = False
    if not inside:
        raise UserError(
            f"{name} refers to external data at '{location[:_LONGEST_NAME]}', outside the model's own folder; "
            f"keep the data next to the model and refer to it by a relative path."
        )
    if not there:
        raise UserError(f"{name} needs the external data file '{location}'; put it next to the model.")


def _is_inside(folder: Path, location: str) -> bool:
    return bool(
        location
        and not PurePosixPath(location).is_absolute()
        and not PureWindowsPath(location).anchor
        and ".." not in (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
        and (folder / location).resolve().is_relative_to(folder.resolve())
    )


def refuse_more_than_protobuf(model: Model) -> None:
    """Refuse weights that do not fit into one ONNX model."""
    size = sum(map(model.weights.nbytes, model.weights)) + model.proto.ByteSize()
    if size > light.MAX_BYTES:
        raise UserError(
            f"{model.name} has weights of {size / 1e9:.1f} GB, and one ONNX model holds less than 2 GiB; "
            f"convert it with from_onnx, which keeps weights apart."
        )


def check_graph(model: onnx.ModelProto, name: str) -> None:
    """Refuse a graph that breaks the rules of ONNX; its large weights must have been lifted before."""
    try:
        onnx.checker.check_model(_as_runtimes_read_it(model))
    except (onnx.checker.ValidationError, ValueError) as err:
        raise UserError(f"{name} is not a valid ONNX graph ({one_line(err)}); export it again.") from err


_WITHOUT_DOMAIN = {"SimplifiedLayerNormalization"}
_FREE_INITIALIZERS = 4  # the version of ONNX's IR from which on an initializer need not be an input


def _as_runtimes_read_it(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that ONNX's checker accepts as runtimes do.

    Operators that ONNX Runtime writes without their domain get it, which the checker requires. Files of IR version 3
    have initializers that are not inputs, and outputs without a shape or a type, which follow from their nodes; only
    the checker refuses both.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(model.ir_version, _FREE_INITIALIZERS)
    if any(node.op_type in _WITHOUT_DOMAIN for node in walk.nodes(model.graph)):
        copy.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    for node in walk.nodes(copy.graph):
        node.domain = "com.microsoft" if node.op_type in _WITHOUT_DOMAIN else node.domain
    for value in copy.graph.output:
        tensor = value.type.tensor_type
        tensor.elem_type = tensor.elem_type or onnx.TensorProto.FLOAT
        tensor.shape.SetInParent()
    return copy


def check_tensors(model: Model) -> None:
    """Refuse tensors whose data does not fit their shape, which the ONNX checker accepts."""
    initializers = len(model.proto.graph.initializer)
    for number, tensor in enumerate(walk.stored_tensors(model.proto)):
        if number < initializers and model.weights.hold(tensor):
            continue
        try:
            onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as err:
            raise _damaged(tensor, model.name) from err


def _damaged(tensor: onnx.TensorProto, name: str) -> UserError:
    return UserError(
        f"{name}: the data of tensor '{tensor.name}' does not fit its shape {list(tensor.dims)}; "
        f"the file is damaged, export or copy it again."
    )


def one_line(err: Exception) -> str:
    """Return an error's text as one sentence without a final full stop."""
    return " ".join(str(err).split()).rstrip(".")

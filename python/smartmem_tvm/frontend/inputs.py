# SPDX-License-Identifier: Apache-2.0
"""Arrays to run a model on: from the user's file or drawn at random."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
import onnx

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.spec import Spec

# Operators that pass indices to a Gather unchanged.
_PASS_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Transpose"}
# Errors of numpy and zipfile for a file of another kind or a damaged one.
_DAMAGE = (
    *(ValueError, EOFError, MemoryError, NotImplementedError, SyntaxError, RecursionError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
_SMALL_ID = 2  # bound of random integers without a known table: 0 and 1 are valid as ids, flags and indices


def read_arrays(path: str, names: list[str]) -> dict[str, np.ndarray]:
    """Return arrays by name from an .npz file, or the one array of an .npy file for a model with one input.

    Raises
    ------
    UserError
        If the file cannot be read, holds Python objects, or is an .npy and the model has several inputs.
    """
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.lib.npyio.NpzFile):
            with content:
                return {name: content[name] for name in content.files}
    except OSError as err:
        raise UserError(f"Input file {path} cannot be read ({err.strerror or err}); give an .npz file.") from err
    except _DAMAGE as err:
        raise UserError(
            f"Input file {path} is damaged or no .npz file of plain arrays; write it with numpy.savez."
        ) from err
    if len(names) != 1:
        listing = ", ".join(f"'{name}'" for name in names)
        raise UserError(f"Input file {path} holds one array, but the model takes {listing}; give an .npz file.")
    return {names[0]: content}


def as_stated(spec: Spec, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a file's arrays in the model's types: numpy loads bfloat16 and types of 8 bits and less as raw bytes."""
    return {name: _as_stated(array, spec[name][1]) if name in spec else array for name, array in arrays.items()}


def _as_stated(array: np.ndarray, dtype: str) -> np.ndarray:
    unknown = array.dtype.kind == "V" and array.dtype.fields is None
    return array.view(dtype) if unknown and array.dtype.itemsize == np.dtype(dtype).itemsize else array


def random_inputs(spec: Spec, limits: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Draw arrays that are valid inputs of a model.

    Floats are standard normal; integers are ids below the limit of their input (`id_limits`), 0 or 1 without
    one; masks (booleans, or by their name) are all ones.
    """
    random = np.random.default_rng(seed)
    arrays = {}
    for name, (shape, dtype) in spec.items():
        if dtype == "bool" or "mask" in name.lower():
            arrays[name] = np.ones(shape, dtype)
        elif dtype.startswith(("int", "uint")):
            arrays[name] = random.integers(0, limits.get(name, _SMALL_ID), shape).astype(dtype)
        else:
            arrays[name] = random.standard_normal(shape).astype(dtype)
    return arrays


def id_limits(model: onnx.ModelProto) -> dict[str, int]:
    """Input name -> number of rows of the smallest table that it indexes, for inputs that go into a Gather."""
    tables = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    origin = {value.name: value.name for value in model.graph.input}
    limits: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in _PASS_ON and node.output and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type != "Gather" or len(node.input) != 2 or node.input[1] not in origin:
            continue
        dims = tables.get(node.input[0], ())
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
        if not -len(dims) <= axis < len(dims):  # not a table, or a model that was not checked yet
            continue
        rows, name = dims[axis], origin[node.input[1]]
        limits[name] = min(rows, limits.get(name, rows))
    return limits

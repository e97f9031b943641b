# SPDX-License-Identifier: Apache-2.0
"""Turn inputs with a fixed value into constants of the model; they may decide which branches it has."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import numpy_helper

from smartmem_tvm.errors import UserError, shape_text

Arrays = dict[str, np.ndarray]
_LISTED = 8  # numbers in a message


def fix(model: onnx.ModelProto, values: Mapping[str, ArrayLike], name: str) -> Arrays:
    """Make inputs of a model constants, in place.

    Parameters
    ----------
    model : onnx.ModelProto
        The model of the file; a size of a fixed input may be open.
    values : mapping from str to array_like
        Input name -> numbers. One number also stands for a tensor of one element, a list for a tensor of any shape with
        as many elements.
    name : str
        The model's name in messages.

    Returns
    -------
    dict
        Input name -> array of the input's type and shape.

    Raises
    ------
    UserError
        If there is no input of that name, or the numbers are not of its shape or type.
    """
    inputs = {value.name: value for value in model.graph.input}
    arrays = {}
    for key, value in values.items():
        if key not in inputs:
            known = ", ".join(f"'{each}'" for each in inputs) or "none"
            raise UserError(f"A value is given for '{key}', not an input of {name}; its inputs are: {known}.")
        arrays[key] = _shaped(_typed(value, inputs[key], name), inputs[key], name)
    _replace(model, arrays)
    return arrays


def without_fixed(arrays: Mapping[str, np.ndarray], fixed: Mapping[str, ArrayLike]) -> Arrays:
    """Return the arrays without those of inputs that have a fixed value.

    Raises
    ------
    UserError
        If the array of a fixed input holds other numbers.
    """
    for name in arrays.keys() & fixed.keys():
        given, value = np.asarray(arrays[name]), np.asarray(fixed[name])
        if given.size != value.size or not np.array_equal(given.reshape(-1), value.reshape(-1)):
            raise UserError(
                f"Input '{name}' holds {text_of(given)}, but the model is compiled for {text_of(value)}; leave it out, "
                f"or compile the model with another --value."
            )
    return {name: array for name, array in arrays.items() if name not in fixed}


def text_of(value: ArrayLike) -> str:
    """Return numbers in the form that ``--value`` takes."""
    numbers = np.asarray(value).reshape(-1).tolist()
    return ",".join(map(str, numbers[:_LISTED])) + (f" and {more} more" if (more := len(numbers) - _LISTED) > 0 else "")


def _typed(value: ArrayLike, declared: onnx.ValueInfoProto, name: str) -> np.ndarray:
    number = declared.type.tensor_type.elem_type
    given = np.asarray(value)
    if declared.type.WhichOneof("value") != "tensor_type" or not number or number == onnx.TensorProto.STRING:
        raise UserError(f"Input '{declared.name}' of {name} is no tensor of numbers, and --value gives numbers.")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    if given.dtype.kind not in "biuf" and given.dtype != dtype:
        raise UserError(f"The value of input '{declared.name}' of {name} has to be numbers, not {given.dtype}.")
    with np.errstate(all="ignore"):
        array = given.astype(dtype)
    whole = array.dtype.kind in "biu"
    kept = np.array_equal(array, given) if whole else np.array_equal(np.isfinite(array), np.isfinite(given))
    if not kept:
        raise UserError(
            f"The value {text_of(given)} of input '{declared.name}' of {name} is no {dtype}, which it has; give others."
        )
    return array


def _shaped(array: np.ndarray, declared: onnx.ValueInfoProto, name: str) -> np.ndarray:
    tensor = declared.type.tensor_type
    if not tensor.HasField("shape"):
        return array
    sizes = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else -1 for dim in tensor.shape.dim]
    known = prod(size for size in sizes if size >= 0)
    if len(sizes) == array.ndim and all(size in (-1, found) for size, found in zip(sizes, array.shape)):
        return array
    open_sizes = sizes.count(-1)
    fits = array.size == known if not open_sizes else open_sizes == 1 and known and array.size % known == 0
    if array.ndim > 1 or not fits:
        wanted = shape_text("?" if size < 0 else size for size in sizes)
        raise UserError(
            f"Input '{declared.name}' of {name} is {wanted}, and its value has {array.size} "
            f"number{'' if array.size == 1 else 's'}; give as many as it has."
        )
    return array.reshape(sizes)


def _replace(model: onnx.ModelProto, arrays: Arrays) -> None:
    graph = model.graph
    constants = [tensor for tensor in graph.initializer if tensor.name not in arrays]
    inputs = [value for value in graph.input if value.name not in arrays]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(constants)
    graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in arrays.items())
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)  # IR 3 demands that each constant is an input, too

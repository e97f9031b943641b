# SPDX-License-Identifier: Apache-2.0
"""Give every dimension of every model input a number from the model or from the user, or refuse."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import size_names
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.most_numbers import MOST_NUMBERS, more_than_most

Dim = onnx.TensorShapeProto.Dimension

_TYPES = frozenset(onnx.TensorProto.DataType.values())
_LARGEST = 2**63 - 1  # elements along a dimension: ONNX's type for sizes, by definition
_NO_NUMBERS = (onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)


def bind(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]],
    name: str,
    usual: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Write `shapes` into the inputs of a model, in place, and drop initializers from the list of inputs.

    A named dimension that gets its value from one input gets it everywhere, and so does one that follows from it
    (``32*h``); placeholders like ``?`` are not names. `usual` has the values of names that get none. The shapes of
    intermediate tensors in the file are dropped if an input changed: they may be those of the old input.

    Raises
    ------
    UserError
        If `shapes` names something other than an input, has the wrong rank, contradicts the model or itself, or
        leaves a dimension without a value.
    """
    _drop_initializers_from_inputs(model)
    graph = model.graph
    _forget_names_of_nothing(graph)
    _check_names(graph, shapes, name)
    for value in graph.output:
        _check_is_tensor(value, name, "Output")
    named: dict[str, int] = {}
    changed = False
    for value in graph.input:
        _check_is_tensor(value, name)
        if value.name in shapes:
            changed |= _write_shape(value, shapes[value.name], named, name)
    named = {**usual, **named}
    named = size_names.derived([*named, *_open_names(graph)], named)
    for value in graph.input:
        changed |= _write_named(value, named)
    _refuse_open(graph, named, name)
    _refuse_huge(graph, name)
    if changed:
        del graph.value_info[:]
        for value in graph.output:
            _forget_open_dims(value)


def _drop_initializers_from_inputs(model: onnx.ModelProto) -> None:
    """Make initializers constants: old exporters list each of them as an input too."""
    constants = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in constants]
    if len(kept) == len(model.graph.input):
        return
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 4)  # IR 3 requires initializers to be inputs, too


def _forget_names_of_nothing(graph: onnx.GraphProto) -> None:
    """Drop placeholder names of sizes: ONNX's libraries would take equal names for equal sizes."""
    for each in walk.graphs(graph):
        for value in (*each.input, *each.output, *each.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_param") and size_names.says_nothing(dim.dim_param):
                    dim.ClearField("dim_param")


def _open_names(graph: onnx.GraphProto) -> list[str]:
    dims = [dim for value in graph.input for dim in value.type.tensor_type.shape.dim]
    return [dim.dim_param for dim in dims if not _is_fixed(dim) and dim.dim_param]


def _check_names(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]], name: str) -> None:
    for wrong in sorted(set(shapes) - {value.name for value in graph.input}):
        known = ", ".join(f"'{value.name}'" for value in graph.input) or "none"
        raise UserError(f"A shape is given for '{wrong}', not an input of {name}; its inputs are: {known}.")


def _check_is_tensor(value: onnx.ValueInfoProto, name: str, role: str = "Input") -> None:
    untyped = role == "Output" and not value.HasField("type")  # an output may lack a type
    if value.type.WhichOneof("value") != "tensor_type" and not untyped:
        kind = (value.type.WhichOneof("value") or "value without a type").removesuffix("_type").replace("_", " ")
        raise UserError(
            f"{role} '{value.name}' of {name} is a {kind}, and only tensors are supported as {role.lower()}s: "
            f"export the model with tensors in its place."
        )
    number = value.type.tensor_type.elem_type
    if number not in _TYPES or (role == "Input" and number == onnx.TensorProto.UNDEFINED):
        raise UserError(f"{role} '{value.name}' of {name} has elements of no type that ONNX has; export it again.")
    if number in _NO_NUMBERS:
        kind = onnx.TensorProto.DataType.Name(number).lower()
        raise UserError(
            f"{role} '{value.name}' of {name} has elements of type {kind}, and only real numbers are supported: "
            f"cut the model where it has numbers."
        )


def _write_shape(value: onnx.ValueInfoProto, shape: Sequence[int], named: dict[str, int], name: str) -> bool:
    """Write one shape into an input; return whether that changed it. The values of names are added to `named`."""
    given = "x".join(map(str, shape))
    if not all(isinstance(size, int | np.integer) for size in shape):
        raise UserError(f"The shape {given} given for input '{value.name}' must have numbers only: give each a size.")
    if any(size < 1 for size in shape):
        raise UserError(
            f"The shape {given} given for input '{value.name}' must have positive sizes only: give each at least 1."
        )
    if any(size > _LARGEST for size in shape):
        raise UserError(
            f"The shape {given} given for input '{value.name}' has a size beyond 64 bits: give smaller ones."
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(Dim(dim_value=size) for size in shape)
        return True
    if len(shape) != len(tensor.shape.dim):
        raise UserError(
            f"The shape {given} given for input '{value.name}' has {len(shape)} dimensions, but {name} "
            f"declares {len(tensor.shape.dim)} ({_text(value)}): give as many."
        )
    changed = False
    for axis, (dim, size) in enumerate(zip(tensor.shape.dim, shape)):
        label = "" if _is_fixed(dim) else dim.dim_param
        fixed = dim.dim_value if _is_fixed(dim) else named.setdefault(label, size) if label else size
        if fixed != size and not size_names.is_made_up(label):
            raise UserError(
                f"The shape {given} given for input '{value.name}' contradicts {name}, where dimension "
                f"{axis} is {fixed} ({_text(value)}): give {fixed} there."
            )
        changed |= not _is_fixed(dim)
        dim.dim_value = size
    return changed


def _write_named(value: onnx.ValueInfoProto, named: Mapping[str, int]) -> bool:
    changed = False
    for dim in value.type.tensor_type.shape.dim:
        if not _is_fixed(dim) and dim.dim_param in named:
            dim.dim_value = named[dim.dim_param]
            changed = True
    return changed


def _refuse_open(graph: onnx.GraphProto, named: Mapping[str, int], name: str) -> None:
    """Refuse inputs with open dimensions, all in one error that shows the option to type."""
    problems, remedies, example = [], [], size_names.example(_open_names(graph), named)
    in_python: dict[str, tuple[int, ...]] = {}
    for value in graph.input:
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            problems.append(f"'{value.name}' has no shape at all")
            remedies.append(f"--shape {value.name}:1,3,224,224 (for example)")
            continue
        for axis, dim in enumerate(tensor.shape.dim):
            if not _is_fixed(dim):
                label = f" ('{dim.dim_param}')" if dim.dim_param else ""
                label = f" (written as {dim.dim_value})" if dim.HasField("dim_value") else label
                problems.append(f"dimension {axis}{label} of '{value.name}'")
        if not all(map(_is_fixed, tensor.shape.dim)):
            sizes = [dim.dim_value if _is_fixed(dim) else example.get(dim.dim_param, 1) for dim in tensor.shape.dim]
            remedies.append(f"--shape {value.name}:{','.join(map(str, sizes))}")
            in_python[value.name] = tuple(sizes)
    python = f" (in Python shapes={in_python})" if in_python else ""
    if problems:
        raise UserError(
            f"{name} leaves input sizes open, and kernels are compiled for fixed ones: "
            f"{', '.join(problems)}; give them, for example {' '.join(remedies)}{python}."
        )


def _refuse_huge(graph: onnx.GraphProto, name: str) -> None:
    for value in graph.input:
        if count := more_than_most(dim.dim_value for dim in value.type.tensor_type.shape.dim):
            raise UserError(
                f"Input '{value.name}' of {name} has {count} numbers ({_text(value)}), and {MOST_NUMBERS} is the most "
                f"that kernels index; give smaller sizes."
            )


def _forget_open_dims(value: onnx.ValueInfoProto) -> None:
    """Drop the dimension names of an output: the shapes of the inputs now determine its sizes."""
    for dim in value.type.tensor_type.shape.dim:
        if not _is_fixed(dim):
            dim.Clear()


def _is_fixed(dim: Dim) -> bool:
    # Some exporters write -1 for an unknown size. A size of 0 is fixed: the tensor has no elements.
    return dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0


def _text(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return "x".join(str(dim.dim_value) if _is_fixed(dim) else dim.dim_param or "?" for dim in dims)

# SPDX-License-Identifier: Apache-2.0
"""Several sizes of one model: the sizes that lists ask for, and a model bound to each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import onnx

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import size_names
from smartmem_tvm.frontend.onnx_file import Model

if TYPE_CHECKING:
    import tvm

MOST_SIZES = 64
"""Each size has kernels of its own, about a second of compiling each: more are a mistake, or another kind of model."""
Lists = Mapping[str, Sequence[Sequence[int]]]
"""Input name -> for each dimension the sizes that it takes, in the user's order; one for most."""
Shapes = Mapping[str, Sequence[int]]


def expanded(lists: Lists, graph: onnx.GraphProto) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of each size that `lists` ask for.

    Lists for dimensions of one name (``batch`` of two inputs, or ``h`` and ``32*h``) go through their values together.
    Each list of another name is combined with all values of the lists before it.

    Raises
    ------
    UserError
        If lists that go together differ in length, or there are more than `MOST_SIZES` sizes.
    """
    places: dict[object, list[tuple[str, int]]] = {}
    for name, axis in ((name, axis) for name, dims in lists.items() for axis, dim in enumerate(dims) if len(dim) > 1):
        places.setdefault(_variable(graph, name, axis), []).append((name, axis))
    for variable, together in places.items():
        _refuse_other_lengths(lists, variable, together)
    counts = [range(len(lists[name][axis])) for (name, axis), *_ in places.values()]
    refuse_too_many(prod(map(len, counts)))
    sizes = []
    for chosen in itertools.product(*counts):
        at = {place: number for number, each in zip(chosen, places.values(), strict=True) for place in each}
        sizes.append(
            {name: tuple(dim[at.get((name, axis), 0)] for axis, dim in enumerate(dims)) for name, dims in lists.items()}
        )
    return distinct(sizes)


def _variable(graph: onnx.GraphProto, name: str, axis: int) -> object:
    """Return what names a dimension: the name in its own name or expression, else the input and the axis."""
    dims = next((each.type.tensor_type.shape.dim for each in graph.input if each.name == name), ())
    label = dims[axis].dim_param if axis < len(dims) else ""
    if not label or size_names.says_nothing(label) or size_names.is_made_up(label):
        return name, axis
    names = size_names.names_in(label)
    return next(iter(names)) if len(names) == 1 else label


def _refuse_other_lengths(lists: Lists, variable: object, together: Sequence[tuple[str, int]]) -> None:
    (first, axis), *others = together
    for name, other in others:
        if len(lists[name][other]) != len(lists[first][axis]):
            raise UserError(
                f"Input '{first}' is given {len(lists[first][axis])} sizes of '{variable}' and input '{name}' "
                f"{len(lists[name][other])}, and the model has one '{variable}' for both: give lists of one length."
            )


def refuse_too_many(count: int) -> None:
    """Refuse more sizes than `MOST_SIZES`."""
    if count > MOST_SIZES:
        raise UserError(f"{count} sizes are asked for, and a model has at most {MOST_SIZES}: give shorter lists.")


def distinct(sizes: Sequence[Shapes]) -> list[dict[str, tuple[int, ...]]]:
    """Return the sizes, each once, in their order."""
    found: list[dict[str, tuple[int, ...]]] = []
    for each in sizes:
        shapes = {name: tuple(shape) for name, shape in each.items()}
        if shapes not in found:
            found.append(shapes)
    return found


def bound_to_each(
    model: Model, sizes: Sequence[Shapes] | Callable[[onnx.GraphProto], Sequence[Shapes]], bind: Callable
) -> list[Model]:
    """Return the model bound to each size; all share its weights.

    Parameters
    ----------
    model : Model
        As `onnx_file.read` returns it, its dimensions still open.
    sizes : sequence of mapping, or callable
        The shapes of each size, as of `read_model`; or a function of the graph that returns them.
    bind : callable
        ``bind(model, shapes)``: give each dimension a number, in place.

    Raises
    ------
    UserError
        If there is no size, or too many; otherwise as `read_model`.
    """
    asked = distinct(sizes(model.proto.graph)) if callable(sizes) else checked(sizes)
    models = []
    for shapes in asked:
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        models.append(bind(replace(model, proto=proto), shapes))
    return _each_once(models)


def checked(sizes: Sequence[Shapes]) -> list[dict[str, tuple[int, ...]]]:
    """Return the sizes that a caller asks for, each once.

    Raises
    ------
    UserError
        If they are no list of mappings, or too many.
    """
    if not isinstance(sizes, list | tuple) or not sizes or not all(isinstance(each, Mapping) for each in sizes):
        raise UserError(
            "shapes is one mapping of input names to shapes, or a list of at least one: "
            "shapes=[{'x': (1, 3, 224, 224)}, {'x': (4, 3, 224, 224)}]."
        )
    found = distinct(sizes)
    refuse_too_many(len(found))
    return found


def _each_once(models: Sequence[Model]) -> list[Model]:
    """Return models of different shapes: two sizes may differ in a name that the model does not use."""
    found: dict[tuple, Model] = {}
    for model in models:
        found.setdefault(tuple(shape for shape, _ in model.inputs.values()), model)
    return list(found.values())


def joined(modules: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """Return one module with a function for each of these, or the only one as it is."""
    from smartmem_tvm.ir.several_sizes import with_sizes

    return modules[0] if len(modules) == 1 else with_sizes(modules)

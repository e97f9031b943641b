# SPDX-License-Identifier: Apache-2.0
"""Check that the sizes given to the model of a torch program are among those that it was exported for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import dimensions, size_names

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from smartmem_tvm.frontend.spec import Spec


def check_sizes(program: ExportedProgram, inputs: Spec, name: str) -> None:
    """Refuse sizes that are outside of the program's bounds or break its relations between sizes.

    Raises
    ------
    UserError
        Names the first wrong dimension.
    """
    stated = list(_open_sizes(program, inputs))
    known = {size: value for *_, size, value in stated if size.is_Symbol}
    values = {str(size): value for *_, size, value in stated}
    solved = size_names.derived([*values, *(str(each) for *_, size, _ in stated for each in size.free_symbols)], values)
    for tensor, axis, size, value in stated:
        if not all(str(each) in solved for each in size.free_symbols):
            raise UserError(f"{name}: dimension {axis} of '{tensor}' is {value}, and must be {size}: give such a size.")
        wanted = size.subs(known)
        if wanted.is_number and int(wanted) != value:
            raise UserError(f"{name}: dimension {axis} of '{tensor}' is {value}, and must be {size}: give {wanted}.")
        bounds = program.range_constraints.get(size)
        # torch writes a lower bound of 2 if none was given, and accepts 1 nevertheless.
        if bounds is not None and not (bounds.lower <= max(value, 2) and value <= bounds.upper):
            raise UserError(
                f"{name}: dimension {axis} of '{tensor}' is {value}, and the program was exported for {bounds.lower} "
                f"to {bounds.upper}; give such a size, or export it for others."
            )


def open_shapes(program: ExportedProgram) -> dict[str, tuple] | None:
    """Return the shapes of inputs whose sizes the program leaves open within stated bounds, with ranges in their place.

    Returns
    -------
    dict or None
        Input name -> sizes, and texts like ``1..64``; None if the program leaves no size open, one without an upper
        bound, or only one that follows from another, as ``2*n``.
    """
    found, known = {}, set()
    for node in program.graph.nodes:
        sizes = getattr(node.meta.get("val"), "shape", ()) if node.op == "placeholder" else ()
        symbols = [size.node.expr for size in sizes if hasattr(size, "node")]
        plain = [each for each in symbols if each.is_Symbol]
        known |= set(plain)
        if not plain or node.name not in program.graph_signature.user_inputs:
            continue
        found[node.name] = tuple(_range(program, size) if hasattr(size, "node") else int(size) for size in sizes)
        if None in found[node.name]:
            return None
    spans = {each for shape in found.values() for each in shape if isinstance(each, str)}
    if not found or len(spans) != len({size for size in program.range_constraints if size in known}):
        return None
    return found


def _range(program: ExportedProgram, size: Any) -> str | None:
    bounds = program.range_constraints.get(size.node.expr)
    if bounds is None or not size.node.expr.is_Symbol or not bounds.upper.is_Integer:
        return None
    return f"{max(1, int(bounds.lower))}..{int(bounds.upper)}"


def with_fixed_sizes(program: ExportedProgram, shapes: Mapping[str, Sequence[int]], name: str) -> ExportedProgram:
    """Export a program again, with a number for each size that it leaves open.

    Parameters
    ----------
    shapes : mapping from str to sequence of int
        Input name -> shape; sizes that follow from these may be left out.

    Raises
    ------
    UserError
        If a size depends on run-time numbers, is not given, or is not one that the program was exported for.
    """
    import torch
    from torch.utils import _pytree as tree

    of_numbers = sorted(str(size) for size in program.range_constraints if str(size).startswith("u"))
    if of_numbers:
        raise UserError(
            f"{name} has sizes that depend on the numbers that it computes ({', '.join(of_numbers)}), and kernels are "
            f"compiled for fixed ones; take these operators out of it."
        )
    inputs = _bound_inputs(program, shapes, name)
    check_sizes(program, inputs, name)
    given = iter(inputs.values())

    def resized(example: torch.Tensor) -> torch.Tensor:
        return torch.zeros(next(given)[0], dtype=example.dtype, device=example.device)

    args, options = tree.tree_map_only(torch.Tensor, resized, program.example_inputs)
    with torch.no_grad():
        return torch.export.export(program.module(), args, options, strict=False)


def _bound_inputs(program: ExportedProgram, shapes: Mapping[str, Sequence[int]], name: str) -> Spec:
    """Return the inputs with sizes from `shapes`, by the rules for the inputs of an ONNX file."""
    tensors = [
        (node.name, node.meta["val"])
        for node in program.graph.nodes
        if node.op == "placeholder"
        and node.name in program.graph_signature.user_inputs
        and _is_tensor(node.meta["val"])
    ]
    infos = [
        helper.make_tensor_value_info(
            key, helper.np_dtype_to_tensor_dtype(_dtype(value)), list(map(_size, value.shape))
        )
        for key, value in tensors
    ]
    model = helper.make_model(helper.make_graph([], "sizes", infos, []))
    dimensions.bind(model, shapes, name)
    return {
        each.name: (tuple(dim.dim_value for dim in each.type.tensor_type.shape.dim), str(_dtype(value)))
        for each, (_, value) in zip(model.graph.input, tensors, strict=True)
    }


def _is_tensor(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _dtype(tensor: Any) -> np.dtype:
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def _size(size: Any) -> int | str:
    return str(size) if hasattr(size, "node") else size


def _open_sizes(program: ExportedProgram, inputs: Spec) -> Iterator[tuple[str, int, Any, int]]:
    """Yield input, axis, sympy expression and value of each size that the program leaves open."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            for axis, size in enumerate(getattr(node.meta["val"], "shape", ())):
                if hasattr(size, "node"):  # an int has none
                    yield node.name, axis, size.node.expr, inputs[node.name][0][axis]

# SPDX-License-Identifier: Apache-2.0
"""Whether the sizes that a model of a torch program has got are among those that the program was exported for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from smartmem_tvm.errors import UserError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from smartmem_tvm.frontend.spec import Spec


def check_sizes(program: ExportedProgram, inputs: Spec, name: str) -> None:
    """Refuse sizes outside of the program's bounds, or that are not to each other as it says.

    Raises
    ------
    UserError
        Names the first such dimension.
    """
    stated = list(_open_sizes(program, inputs))
    known = {size: value for *_, size, value in stated if size.is_Symbol}
    for tensor, axis, size, value in stated:
        wanted = size.subs(known)
        if wanted.is_number and int(wanted) != value:
            raise UserError(f"{name}: dimension {axis} of '{tensor}' is {value}, and must be {size}: give {wanted}.")
        bounds = program.range_constraints.get(size)
        # Where torch was told no bounds it writes 2, and takes 1 all the same.
        if bounds is not None and not (bounds.lower <= max(value, 2) and value <= bounds.upper):
            raise UserError(
                f"{name}: dimension {axis} of '{tensor}' is {value}, and the program was exported for {bounds.lower} "
                f"to {bounds.upper}; give such a size, or export it for others."
            )


def _open_sizes(program: ExportedProgram, inputs: Spec) -> Iterator[tuple[str, int, Any, int]]:
    """Input, axis, sympy's expression and value of each size that the program leaves open."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            for axis, size in enumerate(getattr(node.meta["val"], "shape", ())):
                if hasattr(size, "node"):  # an int has none
                    yield node.name, axis, size.node.expr, inputs[node.name][0][axis]

# SPDX-License-Identifier: Apache-2.0
"""Write torch operators with simpler ones if no importer knows them or torch itself decomposes them badly.

A form is a function of torch with the operator's arguments and results, in the same types. torch traces it, so that its
own exporter and TVM's importer both read the simpler operators. Each family of operators has one file, whose table
``FORMS`` maps the name of an overload to the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from smartmem_tvm.frontend import (
    torch_angles,
    torch_bits,
    torch_experts,
    torch_layers,
    torch_quantiles,
    torch_scans,
    torch_search,
    torch_sorts,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

FORMS: dict[str, Callable] = {
    name: form
    for family in (
        torch_angles,
        torch_bits,
        torch_experts,
        torch_layers,
        torch_quantiles,
        torch_scans,
        torch_search,
        torch_sorts,
    )
    for name, form in family.FORMS.items()
}


def with_simple_operators(program: ExportedProgram) -> ExportedProgram:
    """Replace the operators that have a form.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Stays unchanged.

    Returns
    -------
    torch.export.ExportedProgram
        `program` itself if none of its operators has a form.
    """
    found = {node.target: form for node in _calls(program) if (form := _form(node))}
    return program.run_decompositions(found) if found else program


def _form(node: Node) -> Callable | None:
    name = str(node.target)
    if name in torch_scans.STATED:
        return torch_scans.STATED[name] if node.kwargs.get("dtype") is not None else None
    return FORMS.get(name)


def _calls(program: ExportedProgram) -> Iterator[Node]:
    for module in program.graph_module.modules():  # also the branches of a condition and bodies of loops
        yield from (node for node in module.graph.nodes if node.op == "call_function")

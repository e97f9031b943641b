# SPDX-License-Identifier: Apache-2.0
"""Cast reductions of half and bfloat16 back: torch's exporter computes them in float32 and keeps that type."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

# Operators whose type torch.onnx promotes (ReductionTypePromotionRule) without a way back.
_REDUCTIONS = {"sum", "prod", "amax", "amin", "cumsum", "cumprod", "mean", "norm", "logcumsumexp"}


def with_narrow_results(program: ExportedProgram) -> ExportedProgram:
    """Write out both casts: the reduction computes in float32, and its result has the type that the program states.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Stays unchanged.

    Returns
    -------
    torch.export.ExportedProgram
        `program` itself if it has no reduction of that kind.
    """
    if not any(map(_is_narrow, program.graph.nodes)):
        return program
    module, signature = copy.deepcopy(program.graph_module), copy.deepcopy(program.graph_signature)
    with module._set_replace_hook(signature.get_replace_hook()):
        for node in [*filter(_is_narrow, module.graph.nodes)]:
            _widen(module.graph, node)
    module.recompile()
    return program._update(module, signature)


def _is_narrow(node: torch.fx.Node) -> bool:
    import torch

    if node.op != "call_function" or getattr(node.target, "_opname", None) not in _REDUCTIONS:
        return False
    values = (node.args[0].meta.get("val"), node.meta.get("val"))
    return all(getattr(each, "dtype", None) in (torch.float16, torch.bfloat16) for each in values)


def _widen(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    import torch

    cast, before, stated = torch.ops.aten._to_copy.default, node.args[0], node.meta["val"]
    with graph.inserting_before(node):
        wide = graph.call_function(cast, (before,), {"dtype": torch.float32})
    wide.meta["val"] = before.meta["val"].to(torch.float32)
    node.args = (wide, *node.args[1:])
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "dtype"}
    with graph.inserting_after(node):
        narrow = graph.call_function(cast, (node,), {"dtype": stated.dtype})
    narrow.meta["val"] = stated
    node.meta["val"] = stated.to(torch.float32)
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)

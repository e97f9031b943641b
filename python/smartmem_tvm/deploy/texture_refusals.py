# SPDX-License-Identifier: Apache-2.0
"""Find the kernels of a network that cannot be compiled with textures, and must use buffers."""

from __future__ import annotations

import tvm
from tvm import ir, tirx
from tvm.target import Target

from ..ir.graph import CALL_TIR, Node, graphs
from ..ir.texels import is_texture
from ..pipeline import Options, lower_phases, run_phases
from .kernel_code import kernel_code


def without_textures(graph: tvm.IRModule, target: Target, failure: str) -> dict[str, str]:
    """Return the tensors of kernels that cannot be compiled with their textures, each with the reason.

    Parameters
    ----------
    graph : tvm.IRModule
        A graph of kernels that could not be compiled.
    failure : str
        The error of the whole graph. If each kernel alone compiles, it is the reason for all kernels with textures.
    """
    users: dict[ir.GlobalVar, list[Node]] = {}
    for node in (node for each in graphs(graph) for node in each if _calls_kernel(node)):
        if any(map(is_texture, _buffers(graph[node.value.args[0]]))):
            users.setdefault(node.value.args[0], []).append(node)
    reasons = {gvar: _reason(graph[gvar], target) for gvar in users}
    if not any(reasons.values()):
        reasons = dict.fromkeys(users, _sentence(failure))
    return {node.var.name: reasons[gvar] for gvar, nodes in users.items() for node in nodes if reasons[gvar]}


def _calls_kernel(node: Node) -> bool:
    return isinstance(node.value, ir.Call) and node.value.op == CALL_TIR


def _buffers(kernel: tirx.PrimFunc) -> list:
    return [param for param in kernel.params if isinstance(param.ty, tirx.BufferType)]


def _reason(kernel: tirx.PrimFunc, target: Target) -> str:
    """Return the reason why a kernel of a graph cannot be compiled, empty if it can."""
    mod = tvm.IRModule({"it": kernel.with_attr("global_symbol", "it")})
    try:
        with target:
            scheduled = run_phases(mod, lower_phases(target)[:1], Options())
        kernel_code(scheduled, target)
    except Exception as error:
        return _sentence(str(error)) or type(error).__name__
    return ""


def _sentence(text: str) -> str:
    """Return the last line of a message, which is TVM's text after the trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].partition("; compile with")[0] if lines else ""

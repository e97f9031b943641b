# SPDX-License-Identifier: Apache-2.0
"""The signatures of kernels that a compiled folder records, so that a kernel can be launched alone, on any device."""

from __future__ import annotations

from dataclasses import astuple

import tvm
from tvm import tirx

from ..graph_report import only_moves_data
from ..ir.graph import launches
from ..ir.several_sizes import size_functions
from ..tune.parameters import has_fixed_shapes, parameters


def signatures(lowered: tvm.IRModule) -> dict[str, list[tuple]]:
    """Return kernel of fixed shapes -> element type, extents and memory scope of each parameter, with workspaces.

    Parameters
    ----------
    lowered : tvm.IRModule
        Module after `deploy.build.lower`.
    """
    kernels = {g.name_hint: f for g, f in lowered.functions.items() if isinstance(f, tirx.PrimFunc)}
    return {
        name: [astuple(each) for each in parameters(func)] for name, func in kernels.items() if has_fixed_shapes(func)
    }


def launched(graph: tvm.IRModule, known: dict[str, list[tuple]], size: str | None = None) -> list[dict]:
    """Return the kernels that an inference launches.

    Parameters
    ----------
    graph : tvm.IRModule
        Module after the graph passes.
    known : dict
        The `signatures` of the kernels.
    size : str, optional
        Of a model of several sizes, the function of the one that runs.

    Returns
    -------
    list of dict
        ``kernel``, ``launches`` in one inference, ``layout`` (whether it only moves data), ``parameters``.
    """
    others = [name for name in size_functions(graph) if name != size] if size else []
    counts = {gvar.name_hint: (count, gvar) for gvar, count in launches(graph, without=others).items()}
    return [
        {"kernel": name, "launches": count, "layout": only_moves_data(graph[gvar]), "parameters": known[name]}
        for name, (count, gvar) in counts.items()
        if name in known
    ]

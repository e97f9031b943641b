# SPDX-License-Identifier: Apache-2.0
"""Cases of one opset as one model, which takes much less to compile than each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from onnx_versions import versions
from onnx_versions.cases import Case


def joined(cases: Mapping[str, Case], opset: int) -> tuple[onnx.ModelProto, dict, dict[str, Sequence[np.ndarray]]]:
    """One model of single nodes, its inputs, and what each case should compute.

    Returns
    -------
    tuple
        The outputs of the model are those of the cases, in their order.
    """
    nodes, inputs, outputs, stated, feeds, wanted = [], [], [], [], {}, {}
    for number, (name, case) in enumerate(cases.items()):
        wanted[name], _ = versions.right(case, opset)
        graph = versions.stated(case, opset, wanted[name]).graph
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = f"n{number}/{value.name}"
        for node in graph.node:
            node.name = name
            node.input[:] = [each and f"n{number}/{each}" for each in node.input]
            node.output[:] = [f"n{number}/{each}" for each in node.output]
        nodes += graph.node
        inputs += graph.input
        outputs += graph.output
        stated += graph.initializer
        feeds |= {f"n{number}/{each}": value for each, value in case.feeds.items()}
    graph = helper.make_graph(nodes, f"opset_{opset}", inputs, outputs, stated)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), feeds, wanted

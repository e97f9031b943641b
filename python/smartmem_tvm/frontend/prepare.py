# SPDX-License-Identifier: Apache-2.0
"""Prepare a graph with ONNX's libraries, in the process of `in_child_process`; this module does not import TVM."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import onnx

from smartmem_tvm.frontend import control_flow, expand_functions, fold
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.pools import trim_pools


@dataclass(frozen=True)
class Known:
    """The operators that have a converter.

    Attributes
    ----------
    labels : set of str
        Their names from `graph.operator_label`.
    names : set of str
        Names of further operators in ONNX's own domain.
    """

    labels: Set[str]
    names: Set[str]

    def __call__(self, node: onnx.NodeProto) -> bool:
        """Whether the operator of a node has a converter."""
        return walk.operator_label(node) in self.labels or (
            node.domain in walk.ONNX_DOMAINS and node.op_type in self.names
        )


def changed(model: onnx.ModelProto, name: str, known: Known) -> onnx.ModelProto:
    """Expand functions, fold nodes that are known before the model runs, and resolve loops and branches.

    Raises
    ------
    UserError
        If a step fails; it names the node, and the model by `name`.
    """
    # Functions before folding: their bodies contain shape arithmetic, too.
    model = fold.fold_shape_arithmetic(trim_pools(expand_functions.inline(model, known)))
    return control_flow.resolve(model, name)

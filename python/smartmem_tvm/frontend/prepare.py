# SPDX-License-Identifier: Apache-2.0
"""What is done to a graph by ONNX's libraries, in the process that `apart` has for them: nothing here is of TVM."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import onnx

from smartmem_tvm.frontend import control_flow, fold, functions
from smartmem_tvm.frontend import graph as walk
from smartmem_tvm.frontend.pools import trim_pools


@dataclass(frozen=True)
class Known:
    """The operators that have a converter.

    Attributes
    ----------
    labels : set of str
        As `graph.operator_label` calls them.
    names : set of str
        Besides, of ONNX's own domain.
    """

    labels: Set[str]
    names: Set[str]

    def __call__(self, node: onnx.NodeProto) -> bool:
        """Whether there is a converter that means the operator of a node."""
        return walk.operator_label(node) in self.labels or (
            node.domain in walk.ONNX_DOMAINS and node.op_type in self.names
        )


def changed(model: onnx.ModelProto, name: str, known: Known) -> onnx.ModelProto:
    """Expand functions, fold what is known before the model runs, and resolve loops and branches.

    Raises
    ------
    UserError
        If that cannot be done; it names the node, and `name`, the model.
    """
    # Functions before folding: their bodies bring shape arithmetic of their own.
    model = fold.fold_shape_arithmetic(trim_pools(functions.inline(model, known)))
    return control_flow.resolve(model, name)

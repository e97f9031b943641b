# SPDX-License-Identifier: Apache-2.0
"""Which kernels are products that matrix instructions take, asked before anything is scheduled."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from tvm import tirx
from tvm.target import Target

from ....ir.graph import Node
from ....ir.kernel import Kernel, emit
from ..matmul.product import MatmulProduct
from .factors import Factors
from .matrix import LEAST, GpuMatrix, multiplied


def products_on(target: Target) -> Callable[[Node], bool]:
    """Says of nodes of a graph whether matrix instructions of the target would take their kernels."""
    # The layers of a network share kernels; and a node that is a product is one in whatever order its tensors are.
    kernels: WeakKeyDictionary[Kernel, bool] = WeakKeyDictionary()
    nodes: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()

    def takes(node: Node) -> bool:
        if node not in nodes:
            if node.kernel is not None and node.kernel not in kernels:
                kernels[node.kernel] = multiplied_in(emit(node.kernel, node.attrs), target) is not None
            nodes[node] = node.kernel is not None and kernels[node.kernel]
        return nodes[node]

    return takes


def multiplied_in(func: tirx.PrimFunc, target: Target, least: int = LEAST) -> tuple[MatmulProduct, Factors] | None:
    """The product in an unscheduled kernel that matrix instructions take, and its factors; None if they do not.

    Parameters
    ----------
    least : int
        See `matrix.multiplied`.
    """
    return GpuMatrix().ask(func, target, lambda kernel, params: multiplied(kernel, params, least))

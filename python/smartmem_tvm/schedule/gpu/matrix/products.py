# SPDX-License-Identifier: Apache-2.0
"""Find the kernels that tensor cores (matrix instructions) take, before they are scheduled."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from tvm import tirx
from tvm.target import Target

from ....ir.graph import Node
from ....ir.kernel import Kernel, emit
from ..gemm.product import MatmulProduct
from .factors import Factors
from .matrix import LEAST, GpuMatrix, multiplied


def products_on(target: Target) -> Callable[[Node], bool]:
    """Return a function that says whether matrix instructions of the target would take the kernel of a graph's node."""
    # The layers of a network share kernels, and a change of layout does not change whether a node is a product: so the
    # answer is stored by kernel and by node.
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
    """Return the product in an unscheduled kernel, and its factors; None if matrix instructions do not take it.

    Parameters
    ----------
    least : int
        See `matrix.multiplied`.
    """
    return GpuMatrix().ask(func, target, lambda kernel, params: multiplied(kernel, params, least))

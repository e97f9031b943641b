# SPDX-License-Identifier: Apache-2.0
"""An If whose condition is known only at run time and whose branches are both computed."""

from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, dtype_of, shape_of


def choose(node: Node) -> relax.Expr:
    """Select one of two whole tensors by a condition of one element."""
    condition, yes, no = node.inputs
    kinds = [f"{dtype_of(each)} {shape_of(each)}" for each in (yes, no)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"its branches give {kinds[0]} and {kinds[1]}, and its condition is known only at run time; make the "
            f"condition a constant"
        )
    return relax.op.where(node.emit(relax.op.reshape(condition, [1] * len(shape_of(yes)))), yes, no)


CONVERTERS = {"smartmem.Choose": choose}

# SPDX-License-Identifier: Apache-2.0
"""Operators that slide over a picture: convolutions, pools ..."""

from tvm import relax

from smartmem_tvm.frontend.converters.node import Node


def conv_transpose(node: Node) -> relax.Expr | None:
    """ConvTranspose with `output_shape` is refused: TVM's converter ignores it."""
    if "output_shape" in node.attrs:
        raise ValueError("TVM ignores its attribute output_shape; give pads instead")
    return None


CONVERTERS = {
    "ConvTranspose": conv_transpose,
}

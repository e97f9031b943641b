# SPDX-License-Identifier: Apache-2.0
"""Operators that slide over a picture: convolutions, pools, Resize ..."""

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from smartmem_tvm.frontend.converters.node import Node


def resize(node: Node) -> relax.Expr | None:
    """Resize whose scales do not give whole sizes is refused: TVM's converter computes other coordinates, wrongly."""
    scales = node.inputs[2] if len(node.inputs) > 2 else (node.inputs[1] if len(node.inputs) == 2 else None)
    if isinstance(scales, GenericConst) and scales.value.numpy().size:
        sizes = np.asarray([int(dim) for dim in node.inputs[0].ty.shape]) * scales.value.numpy().astype("float64")
        if np.abs(sizes - np.round(sizes)).max() > 1e-3:
            raise ValueError(f"its scales make sizes of {', '.join(f'{size:g}' for size in sizes)}, not whole numbers")
    return None


def conv_transpose(node: Node) -> relax.Expr | None:
    """ConvTranspose with `output_shape` is refused: TVM's converter ignores it."""
    if "output_shape" in node.attrs:
        raise ValueError("TVM ignores its attribute output_shape; give pads instead")
    return None


CONVERTERS = {
    "ConvTranspose": conv_transpose,
    "Resize": resize,
}

# SPDX-License-Identifier: Apache-2.0
"""Weights of a few bits, as ONNX Runtime packs them: constants here, so that they are unpacked before anything runs."""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of


def mat_mul_n_bits(node: Node) -> relax.Expr:
    """com.microsoft.MatMulNBits: columns of the right side in blocks, each with a scale and a zero point."""
    x, packed, scales, zeros, order, bias = (node.input(at) for at in range(6))
    if order is not None:
        raise ValueError("its groups are in an order of their own (g_idx), which has no kernels here")
    packed, scales, points = (node.constant(at) for at in (1, 2, 3))
    if packed is None or scales is None or (zeros is not None and points is None):
        raise ValueError("its weights, scales or zero points are known at run time only; make them constants")
    columns, width = node.attrs["N"], node.attrs["K"]
    bits, block = node.attrs.get("bits", 4), node.attrs["block_size"]
    blocks = -(-width // block)
    codes = _unpacked(packed.reshape(columns, -1), bits, blocks * block).reshape(columns, blocks, block)
    if points is None:
        points = np.full((columns, blocks), 2 ** (bits - 1))
    elif points.dtype == np.uint8:
        points = _unpacked(points.reshape(columns, -1), bits, blocks)
    points, scales = (each.reshape(columns, blocks, 1).astype("float32") for each in (points, scales))
    values = ((codes.astype("float32") - points) * scales).reshape(columns, -1)[:, :width]
    product = node.emit(relax.op.matmul(x, constant(np.ascontiguousarray(values.T), dtype_of(x))))
    return product if bias is None else relax.op.add(product, bias)


def _unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` numbers of each row of bytes; the first of a byte is in its lowest bits."""
    if bits not in (2, 4, 8):
        raise ValueError(f"its weights have {bits} bits, and 2, 4 and 8 are known")
    shifts = np.arange(0, 8, bits, dtype="uint8")
    return ((packed[:, :, None] >> shifts) & (2**bits - 1)).reshape(len(packed), -1)[:, :count]


CONVERTERS = {"com.microsoft.MatMulNBits": mat_mul_n_bits}

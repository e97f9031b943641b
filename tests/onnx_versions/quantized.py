# SPDX-License-Identifier: Apache-2.0
"""Bytes in place of numbers."""

import numpy as np

from onnx_versions.cases import Stated, case, f, stated

BYTES = np.arange(24, dtype="uint8").reshape(4, 6)
case("QuantizeLinear", f(3, 4), stated(0.05), stated(128, "u1"))
case("QuantizeLinear", f(3, 4), stated([0.05, 0.1, 0.2]), stated([0, 1, -2], "i1"), first=13, axis=0)
case(
    "QuantizeLinear",
    f(4, 6),
    Stated(np.abs(f(2, 6)) + 0.1),
    Stated(np.zeros((2, 6), "i1")),
    first=21,
    axis=0,
    block_size=2,
)
case("DequantizeLinear", BYTES, stated(0.05), stated(128, "u1"))
case("DequantizeLinear", BYTES, stated([0.05, 0.1, 0.2, 0.3]), stated([0, 1, 2, 3], "u1"), first=13, axis=0)
case("DequantizeLinear", BYTES, Stated(np.abs(f(2, 6)) + 0.1), first=21, axis=0, block_size=2)
case("DynamicQuantizeLinear", f(3, 4), outputs=3)
case("QLinearMatMul", BYTES, stated(0.05), stated(12, "u1"), Stated(BYTES.reshape(6, 4)), stated(0.1), stated(7, "u1"),
     stated(0.3), stated(100, "u1"))  # fmt: skip
case("QLinearConv", np.arange(32, dtype="uint8").reshape(1, 2, 4, 4), stated(0.05), stated(12, "u1"),
     Stated(np.arange(16, dtype="uint8").reshape(2, 2, 2, 2)), stated(0.1), stated(7, "u1"), stated(0.3),
     stated(100, "u1"))  # fmt: skip

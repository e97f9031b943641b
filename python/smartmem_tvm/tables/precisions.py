# SPDX-License-Identifier: Apache-2.0
"""Precisions by name: the types of tensors, arithmetic and factors of products, and the tolerance of results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """The meaning of ``--precision NAME``.

    Attributes
    ----------
    tolerance : float
        Error of an output, relative to its largest magnitude, that `smartmem verify` allows.
    why : str
        The reason for the tolerance.
    stored, computed, multiplied : str
        Types of weights and tensors between kernels, of element-wise arithmetic, and of the factors of products.
    """

    tolerance: float
    why: str
    stored: str = "float32"
    computed: str = "float32"
    multiplied: str = "float32"


_BFLOAT16 = "a bfloat16 has 8 bits"

PRECISIONS = {
    "float32": Precision(1e-4, "a float32 has 24 bits, and sums may be in another order"),
    "half-storage": Precision(3e-3, "tensors and weights are stored as halves, of 11 bits", "float16"),
    "half": Precision(1e-2, "tensors and arithmetic are of halves, of 11 bits", "float16", "float16", "float16"),
    "bfloat16": Precision(5e-2, f"tensors and factors of products: {_BFLOAT16}", "bfloat16", multiplied="bfloat16"),
    "tf32": Precision(5e-3, "factors of products are rounded to tf32, of 11 bits", multiplied="tf32"),
}
OF_HALF = Precision(1e-2, "the model computes in halves, of 11 bits", "float16", "float16", "float16")
"""The precision of a model that is in float16 itself, under any ``--precision``."""
OF_BFLOAT16 = Precision(5e-2, f"the model computes in bfloat16, and {_BFLOAT16}", *3 * ("bfloat16",))
"""The precision of a model that is in bfloat16 itself."""

ACTIVATIONS = ("stored", "float", "int8")
"""Rows that weights in codes are multiplied by are bytes where the file asks for it, nowhere, or everywhere."""

# SPDX-License-Identifier: Apache-2.0
"""SmartMem Table 3: operators classified by input layout dependency and output layout flexibility."""

from enum import Enum


class Quadrant(Enum):
    """One of the four operator types (SmartMem 3.1)."""

    ILD_VARIABLE = "ILD & Variable"  # input layout dependent, output layout customisable
    ILI_VARIABLE = "ILI & Variable"  # input layout independent, output layout customisable
    ILD_FIXED = "ILD & Fixed"  # input layout dependent, output layout fixed by the input
    ILI_FIXED = "ILI & Fixed"  # input layout independent, output layout fixed by the input

    @property
    def is_fixed(self) -> bool:
        """Whether the output is determined element by element by the input: data movement."""
        return self in (Quadrant.ILD_FIXED, Quadrant.ILI_FIXED)


# fmt: off
TABLE_3: dict[str, Quadrant] = {
    # Comp. performance          Output layout: Variable                    Fixed
    # Input layout dependent
    "Conv":      Quadrant.ILD_VARIABLE,  "Reshape":   Quadrant.ILD_FIXED,
    "MatMul":    Quadrant.ILD_VARIABLE,  "Transpose": Quadrant.ILD_FIXED,
    "LayerNorm": Quadrant.ILD_VARIABLE,  "DtoS":      Quadrant.ILD_FIXED,
    "Softmax":   Quadrant.ILD_VARIABLE,  "StoD":      Quadrant.ILD_FIXED,
    # Input layout independent
    "Unary":     Quadrant.ILI_VARIABLE,  "Gather":    Quadrant.ILI_FIXED,
    "Add":       Quadrant.ILI_VARIABLE,  "Slice":     Quadrant.ILI_FIXED,
}
# fmt: on

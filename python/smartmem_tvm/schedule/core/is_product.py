# SPDX-License-Identifier: Apache-2.0
"""A test of whether rules recognise a product in a kernel: a matmul or a convolution, with rows and columns."""

from __future__ import annotations

from ...ir.kernel import Kernel
from .contraction import contraction_of
from .reduction import reduction_of
from .sequence import run_of


def from_first_sum(kernel: Kernel) -> tuple[int, Kernel]:
    """Return the number of the first reduction stage, and a kernel of it and the stages after it.

    The stages before it are element-wise, such as a padded copy. A kernel without a reduction is returned whole.
    """
    first = next((n for n, stage in enumerate(kernel.stages) if stage.reduction), 0)
    return first, run_of(kernel, kernel.stages[first:]) if first else kernel


def is_product(kernel: Kernel) -> bool:
    """Whether the first reduction of a kernel, with the stages after it, is a product; a padded copy may precede it.

    A view that is fused behind a product may hide it: in ``out[y] = sum[(y + 1) // 2, (y + 1) % 2]`` no iterator
    separates the rows from the columns.
    """
    reduction = reduction_of(from_first_sum(kernel)[1])
    contraction = contraction_of(reduction, pairs=True) if reduction is not None else None
    return contraction is not None and bool(contraction.rows and contraction.columns)

# SPDX-License-Identifier: Apache-2.0
"""Whether schedules see a product in a kernel: a matmul or a convolution, with rows and columns."""

from __future__ import annotations

from ...ir.kernel import Kernel
from .contraction import contraction_of
from .reduction import reduction_of
from .sequence import run_of


def from_first_sum(kernel: Kernel) -> tuple[int, Kernel]:
    """Number of the first stage that adds up, and it with what follows as a kernel; all of the kernel if none does.

    Element by element is what precedes it, such as a padded copy.
    """
    first = next((n for n, stage in enumerate(kernel.stages) if stage.reduction), 0)
    return first, run_of(kernel, kernel.stages[first:]) if first else kernel


def is_product(kernel: Kernel) -> bool:
    """Whether the first sum of a kernel, and what follows it, is a product; a padded copy may precede it.

    A view fused behind a product may leave it none: in ``out[y] = sum[(y + 1) // 2, (y + 1) % 2]`` nothing tells the
    rows from the columns.
    """
    reduction = reduction_of(from_first_sum(kernel)[1])
    contraction = contraction_of(reduction, pairs=True) if reduction is not None else None
    return contraction is not None and bool(contraction.rows and contraction.columns)

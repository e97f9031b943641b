# SPDX-License-Identifier: Apache-2.0
"""The common base of the rules for CPUs: their parameters, and the folding of stages into their readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import tvm
from tvm import tirx

from ...ir.kernel import Kernel
from ...target import is_cpu
from ..core.fold_policies import costly_once_and_plain_sums, folded
from ..core.rule import Answer, NestRule
from ..core.words import dots_in_vectors, joined
from .params import CpuParams
from .softmax_division import division_by_inverse


class CpuRule(NestRule):
    """A rule for ``llvm`` targets."""

    needs: ClassVar[str] = "a CPU"

    def runs_on(self, target: tvm.target.Target) -> bool:
        """Whether the target is a CPU."""
        return is_cpu(target)

    def params_of(self, target: tvm.target.Target) -> CpuParams:
        """Return the tile sizes and thresholds of a CPU."""
        return CpuParams.of(target)

    def ask_kernel(
        self, kernel: Kernel, params: Callable, question: Callable[[Kernel, object], Answer], prepared: bool = False
    ) -> Answer | None:
        """Return ``question(prepared kernel, parameters)``, the division of a softmax as a product."""
        return super().ask_kernel(division_by_inverse(kernel), params, question, prepared)

    def lower(self, kernel: Kernel, params: CpuParams) -> tirx.Stmt | None:
        """Return the loop nest, in which quads of neighbouring bytes are loaded at once and multiplied as vectors."""
        body = super().lower(kernel, params)
        return None if body is None else dots_in_vectors(joined(body))

    def prepare(self, kernel: Kernel) -> Kernel | None:
        """Return the kernel with element-wise stages folded into their readers."""
        return folded(kernel, costly_once_and_plain_sums)

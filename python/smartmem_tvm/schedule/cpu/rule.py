# SPDX-License-Identifier: Apache-2.0
"""What the rules for CPUs have in common: their parameters, and which stages they want folded into their readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import tvm

from ...ir.kernel import Kernel
from ...target import is_cpu
from ..core.fold_policies import costly_once_and_plain_sums, folded
from ..core.rule import Answer, NestRule
from .own_sums import own_sums_inverted
from .params import CpuParams


class CpuRule(NestRule):
    """A rule for ``llvm`` targets."""

    needs: ClassVar[str] = "a CPU"

    def runs_on(self, target: tvm.target.Target) -> bool:
        """Whether the target is a CPU."""
        return is_cpu(target)

    def params_of(self, target: tvm.target.Target) -> CpuParams:
        """Tile sizes and thresholds of a CPU."""
        return CpuParams.of(target)

    def ask_kernel(
        self, kernel: Kernel, params: Callable, question: Callable[[Kernel, object], Answer], prepared: bool = False
    ) -> Answer | None:
        """Ask something of a kernel as the rule sees it."""
        return super().ask_kernel(own_sums_inverted(kernel), params, question, prepared)

    def prepare(self, kernel: Kernel) -> Kernel | None:
        """The kernel with element-wise stages folded into their readers."""
        return folded(kernel, costly_once_and_plain_sums)

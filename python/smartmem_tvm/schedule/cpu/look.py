# SPDX-License-Identifier: Apache-2.0
"""What passes before scheduling have in common that ask, as the rules do, what a kernel is."""

from __future__ import annotations

from ...analysis.row_chain import RowChain
from ...ir.kernel import Kernel
from .attention import RowChains
from .rule import CpuRule


class Look(CpuRule):
    """Asks what a kernel is, and schedules nothing."""

    def prepare(self, kernel: Kernel) -> Kernel | None:
        """The kernel as products want it; chains of rows want it as it is."""
        self.plain = kernel
        return super().prepare(kernel)

    def chain(self) -> RowChain | None:
        """The chain of rows that the kernel is, None if it is none: it keeps near what precedes its products."""
        return RowChains.chain(self.plain)

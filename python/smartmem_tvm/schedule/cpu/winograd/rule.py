# SPDX-License-Identifier: Apache-2.0
"""The rule for Winograd convolutions, which also decides the form of the weights that its schedule reads."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from tvm import tirx

from ....ir.kernel import Kernel
from ...core.decisions import last_reason, noted, priced
from ...core.nest import index
from ..params import CpuParams
from ..rule import CpuRule
from .channel_nest import ChannelNest
from .nest import WinogradNest
from .plan import WinogradPlan
from .shape import Windows, windows_in
from .transforms import transforms
from .winograd_work import work


class Winograd(CpuRule):
    """The rule for 3 x 3 convolutions in fewer multiplications, by transformed tiles (Winograd).

    Parameters
    ----------
    constants : collection of buffer
        Parameters of the kernel whose values are known at compile time.
    choose : callable
        ``(windows, params) -> plan``, or None if the plain convolution is better.

    Attributes
    ----------
    taken : WinogradPlan or None
        The plan of the convolution that was found.
    reason : str
        Why the kernel is left as it is.
    weights : buffer or None
        The transformed weights, which the schedule reads instead of ``taken.windows.weights``.
    """

    def __init__(self, constants: Collection, choose: Callable[[Windows, CpuParams], WinogradPlan | None], params=None):
        super().__init__(params)
        self.reason = "no 3 x 3 convolution of stride 1"
        self.constants, self.choose = list(constants), choose
        self.taken: WinogradPlan | None = None
        self.weights = None

    def plan(self, kernel: Kernel, params: CpuParams) -> WinogradPlan | None:
        """Return the plan of the convolution, or None if the kernel is no such convolution or is left as it is."""
        windows = windows_in(kernel)
        if self.taken is not None or windows is None:
            return None
        if not any(windows.weights.same_as(c) for c in self.constants):
            return self._leave("its weights are computed")
        if windows.innermost and not windows.makes_vectors(params.lanes):
            return self._leave("its channels fill no vectors")
        plan = self.choose(windows, params)
        if plan is None:
            return self._leave(last_reason())
        priced(lambda: work(plan).price)
        return plan

    def _leave(self, reason: str) -> None:
        self.reason = reason

    def emit(self, plan: WinogradPlan) -> tirx.Stmt:
        """Return the loop nest."""
        self.taken, division = plan, plan.division
        rows = {"result": plan.result, "block_rows": division.rows, "row_parts": division.parts}
        noted("winograd", **rows, blocks_in_parallel=division.outside, products_first=division.apart)
        self.weights = tirx.decl_buffer([index(n) for n in _shape(plan)], "float32", plan.windows.weights.name)
        nest = ChannelNest if plan.windows.innermost else WinogradNest
        return nest(plan, self.weights).kernel()


def _shape(plan: WinogradPlan) -> tuple[int, ...]:
    groups = plan.windows.extent(plan.windows.groups)
    return groups, plan.points, plan.panels, plan.channels, plan.panel


def transformed(plan: WinogradPlan, array: np.ndarray) -> np.ndarray:
    """Return transformed weights as the schedule reads them: (groups, points, panels, channels, filters of a panel)."""
    _, points, panels, channels, height = shape = _shape(plan)
    result, found = np.zeros(shape, "float32"), transforms(plan.result)
    for group, windows in enumerate(plan.windows.windows_of(array)):
        padded = np.zeros((points, panels * height, channels), "float32")
        padded[:, : plan.filters] = found.of_windows(windows)
        result[group] = padded.reshape(points, panels, height, channels).swapaxes(2, 3)
    return result

# SPDX-License-Identifier: Apache-2.0
"""The rule for products of few rows and a weight in codes on CPUs: `gemm.coded_nest` has the loops."""

from __future__ import annotations

from tvm import tirx

from ...ir.kernel import Kernel
from ..core.contraction import contraction_of
from ..core.decisions import declined, noted, priced
from ..core.reduction import reduction_of
from .coded_plan import CodedPlan
from .gemm.coded_integers import IntegerNest
from .gemm.coded_nest import CodedNest
from .params import CpuParams
from .rule import CpuRule

_MOST_ROWS, _MOST_ROWS_FEW_REGISTERS = 24, 10
"""Rows, from which on `Matmul`, whose tasks copy panels of floats, is as fast, with 32 registers and with 16. Measured
for 768 x 2048 in four bits on one thread: with 16, 8 rows took 0.80 times as long as there, and 12 took 1.02 (AMD Zen 2
with AVX2, 2026-11-28); with 32, 12 rows took 0.91 times as long as the product of float weights, 24 took 0.82, and 32
took 1.23, as `Matmul` does (an Intel Xeon with AVX-512, 2026-11-29)."""


class CodedProduct(CpuRule):
    """The rule for contractions of few rows whose weights are stored as integers."""

    def plan(self, kernel: Kernel, params: CpuParams) -> CodedPlan | None:
        """Return the plan of a kernel, or None if it is no such contraction."""
        reduction = reduction_of(kernel)
        contraction = contraction_of(reduction) if reduction is not None else None
        if contraction is None or str(reduction.accumulator.ty.dtype) != "float32":
            return declined("no sum of products of two operands in float32")
        plans = (CodedPlan.of(way, params) for way in (contraction, contraction.swapped()))
        plan = next((each for each in plans if each is not None), None)
        if plan is None:
            return declined("no operand is a weight in panels of codes")
        if plan.row_group is None and plan.rows > (_MOST_ROWS_FEW_REGISTERS if plan.few_registers else _MOST_ROWS):
            return declined(f"{plan.rows} rows: each panel is read so often that its floats are worth a copy")
        priced(lambda: plan.price)
        sizes = {"width": plan.panels.width, "bits": plan.panels.bits, "group": plan.panels.group, "block": plan.block}
        noted("coded_product", **sizes, strips=sum(each.count for each in plan.strips), tasks=plan.chunks.count)
        return plan

    def emit(self, plan: CodedPlan) -> tirx.Stmt:
        """Return the loop nest."""
        return (CodedNest if plan.row_group is None else IntegerNest)(plan).kernel()

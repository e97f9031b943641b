# SPDX-License-Identifier: Apache-2.0
"""The rule for matmuls and convolutions of bfloat16 numbers on a CPU with AMX: `gemm.amx_nest` has the loops."""

from __future__ import annotations

from tvm import tirx

from ...ir.kernel import Kernel
from ..core.decisions import declined, noted, priced
from .bfloat16_plan import Bfloat16Plan
from .gemm.amx_nest import AmxNest
from .gemm.micro_kernels import AMX, BFLOAT16, micro_kernel
from .params import CpuParams
from .rule import CpuRule


class Bfloat16Product(CpuRule):
    """The rule for contractions of numbers rounded to bfloat16."""

    def plan(self, kernel: Kernel, params: CpuParams) -> Bfloat16Plan | None:
        """Return the plan of a kernel, or None if it is no such contraction, or the processor has no AMX."""
        if micro_kernel(BFLOAT16, params) is not AMX:
            return declined("the processor has no AMX")
        plan = Bfloat16Plan.of(kernel, params)
        if plan is None:
            return declined("it multiplies no two numbers rounded to bfloat16")
        priced(lambda: plan.price)
        (row_parts, column_parts), parallel = plan.parts, plan.parallel
        tiles = {"height": plan.tile.height, "width": plan.tile.width, "depth_parts": plan.depth_parts}
        blocks = {"left_in_blocks": plan.left_in_blocks, "right_in_blocks": plan.right_in_blocks}
        noted("bfloat16_product", **tiles, row_parts=row_parts, column_parts=column_parts, parallel=parallel, **blocks)
        return plan

    def emit(self, plan: Bfloat16Plan) -> tirx.Stmt:
        """Return the loop nest."""
        return AmxNest(plan).kernel()

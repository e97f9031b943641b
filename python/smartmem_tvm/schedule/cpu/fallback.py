# SPDX-License-Identifier: Apache-2.0
"""Single stages of any form on a CPU (argmax and other tuple reductions): loops in their order, points in parallel."""

from __future__ import annotations

from tvm import tirx

from ...ir.kernel import Kernel, Stage, substitute
from ..core.decisions import declined
from ..core.expressions import split_index
from ..core.nest import Scope, block
from .params import CpuParams
from .rule import CpuRule

_Plan = tuple[Stage, CpuParams]


class Fallback(CpuRule):
    """The rule for single stages of any form; always answers for them."""

    catch_all = True

    def plan(self, kernel: Kernel, params: CpuParams) -> _Plan | None:
        """Return the stage of the kernel, or None if it has several."""
        if len(kernel.stages) != 1:
            return declined(f"{len(kernel.stages)} stages that do not fold into one")
        return kernel.stages[0], params

    def emit(self, plan: _Plan) -> tirx.Stmt:
        """Return the loops of a stage in their order, the spatial ones divided among the threads."""
        stage, params = plan
        scope, points, work = Scope(), 1, 1
        for var in stage.spatial:
            points *= stage.extents[var]
        for extent in stage.extents.values():
            work *= extent
        wanted = params.cores * params.tasks_per_core if work >= params.serial_below else 1

        def at(flat) -> tirx.Stmt:
            place = split_index(flat, stage.spatial, stage.extents)
            start = substitute(stage.init, place) if stage.init is not None else None
            total = scope.nest(stage.reduction, stage.extents, lambda point: substitute(stage.body, {**place, **point}))
            return block(start, total)

        return scope.tasks(points, wanted, at)

# SPDX-License-Identifier: Apache-2.0
"""ApplyRecords: every kernel that was tuned gets the fastest schedule that is on record for it."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir.meta_schedule.database import Database, MemoryDatabase
from tvm.target import Target

from ..schedule.decisions import DECISIONS
from ..schedule.pack_weights import constant_operands
from ..schedule.schedule_kernels import SCHEDULED, is_open, target_of
from .kernel import with_constants, workload
from .strategy import seconds_of
from .trace import with_decisions_taken

# A schedule of TVM's brings the rewriting of its constants along, to be done in every inference.
_CONSTANTS_REWRITTEN = tvm.transform.Sequential(
    [
        relax.transform.SplitLayoutRewritePreproc(),
        relax.transform.FoldConstant(),
        relax.transform.DeadCodeElimination(),
    ]
)


@module_pass(opt_level=0, name="ApplyRecords")
class ApplyRecords:
    """Look up each unscheduled kernel, by TVM's own ``MetaScheduleApplyDatabase``.

    Before: kernels that nobody scheduled. After: where the fastest record is a schedule of TVM's, a scheduled function;
    where it is decisions of ours, an unscheduled one with the attribute ``smartmem.decisions``, which `PackWeights` and
    `ScheduleKernels` follow. What has no record stays as it is. Constants that a schedule of TVM's reads in another
    order are rewritten here.

    Parameters
    ----------
    database : tvm.s_tir.meta_schedule.database.Database
        Only records for a kernel's own target count; TVM's look-up would take any.
    """

    def __init__(self, database: Database):
        self.database = database
        self._by_target: dict[str, MemoryDatabase] = {}

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        constants = constant_operands(mod)
        result, rewritten = mod.clone(), False
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and is_open(func):
                target = target_of(func, gvar.name_hint)
                found = self._found(with_constants(func, constants.get(gvar, ())), target)
                if found is not None:
                    plain = tirx.PrimFunc(found.params, found.body, found.ret_type)
                    result[gvar] = plain.with_attrs({**dict(func.attrs or {}), **_news(found)})
                    rewritten |= DECISIONS not in found.attrs
        return _CONSTANTS_REWRITTEN(result) if rewritten else result

    def _found(self, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
        if str(target) not in self._by_target:
            self._by_target[str(target)] = of_target(self.database, target)
        with target, self._by_target[str(target)]:
            tuned = relax.transform.MetaScheduleApplyDatabase()(workload(func))["main"]
        return with_decisions_taken(tuned) if int(tuned.attrs.get(SCHEDULED, 0)) else None


def _news(func: tirx.PrimFunc) -> dict:
    return {name: func.attrs[name] for name in (SCHEDULED, DECISIONS) if name in func.attrs}


def of_target(database: Database, target: Target) -> MemoryDatabase:
    """The records of a database that are times measured for a target."""
    found = MemoryDatabase()
    for record in database.get_all_tuning_records():
        if seconds_of(record) is not None and tvm_ffi.structural_equal(record.target, target):
            found.commit_workload(record.workload.mod)
            found.commit_tuning_record(record)
    return found

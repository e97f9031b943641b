# SPDX-License-Identifier: Apache-2.0
"""ApplyRecords: every tuned kernel gets the fastest schedule recorded for it."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir.meta_schedule.database import Database, MemoryDatabase
from tvm.target import Target

from ..ir.exchange_constants import constant_operands
from ..schedule.core.decisions import DECISIONS, RULE_GENE
from ..schedule.core.rule import RULE, SCHEDULED, is_open, target_of
from .records import workload_key
from .strategy import seconds_of
from .trace import with_decisions_taken
from .tunable_kernel import with_constants, workload

TUNING = "smartmem.tuning"
LEFT_OUT = "left_out"
"""Name of the fact that says why a kernel has no record that counts."""

# A schedule of TVM's contains the layout rewrite of its constants, which would run in every inference.
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

    Before: unscheduled kernels. After: if the fastest record is a schedule of TVM's, a scheduled function; if it is
    decisions of our rules, an unscheduled function with the attribute ``smartmem.decisions``, which `PackWeights` and
    `ScheduleKernels` follow. A kernel without a record stays unchanged. Constants that a schedule of TVM's reads in
    another order are rewritten here.

    Parameters
    ----------
    database : tvm.s_tir.meta_schedule.database.Database
        Only records for a kernel's own target count; TVM's look-up would take any.
    told : mapping, optional
        Key of a workload (`records.workload_key`) -> facts about its record, or the reason why none counts: plain
        numbers and text, which `tuning_of` later reads from the kernel.
    """

    def __init__(self, database: Database, told: Mapping[str, Mapping] | None = None):
        self.database, self.told = database, dict(told or {})
        self._by_target: dict[str, MemoryDatabase] = {}

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        constants = constant_operands(mod)
        result, rewritten = mod.clone(), False
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and is_open(func):
                target = target_of(func, gvar.name_hint)
                kernel = workload(with_constants(func, constants.get(gvar, ())))
                found, told = self._found(kernel, target), self.told.get(workload_key(kernel))
                attrs = {TUNING: dict(told)} if told is not None else {}
                if found is not None:
                    plain = tirx.PrimFunc(found.params, found.body, found.ret_type)
                    result[gvar] = plain.with_attrs({**dict(func.attrs or {}), **_news(found), **attrs})
                    rewritten |= DECISIONS not in found.attrs
                elif attrs:
                    result[gvar] = func.with_attrs(attrs)
        return _CONSTANTS_REWRITTEN(result) if rewritten else result

    def _found(self, kernel: IRModule, target: Target) -> tirx.PrimFunc | None:
        if str(target) not in self._by_target:
            self._by_target[str(target)] = of_target(self.database, target)
        with target, self._by_target[str(target)]:
            tuned = relax.transform.MetaScheduleApplyDatabase()(kernel)["main"]
        return with_decisions_taken(tuned) if int(tuned.attrs.get(SCHEDULED, 0)) else None


def tuning_of(mod: IRModule) -> dict[str, dict]:
    """Return the facts that `ApplyRecords` attached to each kernel.

    Parameters
    ----------
    mod : tvm.IRModule
        Module after `ScheduleKernels`, lowered further or not.

    Returns
    -------
    dict
        Name of a kernel -> the facts. A tuned kernel also has ``decisions``, by name; None for a schedule of TVM's. If
        no rule could follow the decisions, there is only ``left_out``, which says so.
    """
    kernels = [(gvar.name_hint, f.attrs or {}) for gvar, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return {name: _facts(attrs) for name, attrs in kernels if TUNING in attrs}


def _facts(attrs: Mapping) -> dict:
    told = {str(name): str(value) if isinstance(value, str) else value for name, value in attrs[TUNING].items()}
    if LEFT_OUT in told:
        return told
    if DECISIONS in attrs:
        return {**told, "decisions": {str(n): int(v) for n, v in attrs[DECISIONS].items() if str(n) != RULE_GENE}}
    of_tvm = int(attrs.get(SCHEDULED, 0)) and RULE not in attrs
    return {**told, "decisions": None} if of_tvm else {LEFT_OUT: "no rule can do as was decided"}


def _news(func: tirx.PrimFunc) -> dict:
    return {name: func.attrs[name] for name in (SCHEDULED, DECISIONS) if name in func.attrs}


def of_target(database: Database, target: Target) -> MemoryDatabase:
    """Return the records of a database with times measured for a target."""
    found = MemoryDatabase()
    for record in database.get_all_tuning_records():
        if seconds_of(record) is not None and tvm_ffi.structural_equal(record.target, target):
            found.commit_workload(record.workload.mod)
            found.commit_tuning_record(record)
    return found

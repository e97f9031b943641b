# SPDX-License-Identifier: Apache-2.0
"""The pass that gives every kernel of a module its schedule."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir.schedule import ScheduleError

from ..ir.walk import contains
from .core.decisions import DECISIONS, check_all_asked, deciding, given_rule, in_force
from .core.rule import RULE, SCHEDULED, Rule, is_open, record_of, record_on, target_of
from .gpu.fallback import on_threads
from .rules import default_rules

_CALL_PACKED = ir.Op.get("tirx.tvm_call_packed")
REFUSALS = "smartmem.schedule_refusals"
# What stands for the rule of a kernel that TVM scheduled itself, and of one that no rule knew.
LIBRARY = {"name": "TVM", "family": "operators that TVM dispatches to a kernel of its own", "catch_all": False}
_NONE = {"name": "-", "family": "no rule knows it: plain loops", "catch_all": True}
_logger = logging.getLogger(__name__)


@module_pass(opt_level=0, name="ScheduleKernels")
class ScheduleKernels:
    """Schedule every unscheduled S-TIR PrimFunc with the first rule that answers.

    Before: serial loop nests, one per stage. After: ``parallel``, ``vectorized`` and ``unrolled`` loops over tiles;
    the function carries ``tirx.is_scheduled``, and as ``smartmem.rule`` the ``name``, the ``family`` in words and the
    ``catch_all`` of the rule that answered.

    Refuses (leaves as it is) functions that are scheduled already, are not S-TIR, or that no rule knows. A rule that
    raises ``ScheduleError`` counts as not answering; what it said is logged and kept on the function as the attribute
    ``smartmem.schedule_refusals``. Decisions that a function brings along (`decisions`) take the place of the rules'
    own; those that no rule can follow are dropped, with a warning.

    Parameters
    ----------
    rules : sequence of Rule, optional
        By default `default_rules`.
    """

    def __init__(self, rules: Sequence[Rule] | None = None):
        self.rules = list(rules) if rules is not None else default_rules()

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        result = mod.clone()
        for name, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and is_open(func):
                result[name] = self._schedule(func, name.name_hint)
        return result

    def _schedule(self, func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
        target, wanted, refusals = target_of(func, name), given_rule(func), []
        for rule in (each for each in self.rules if wanted in (None, each.name)):
            try:
                with deciding(func) as taken:
                    schedule = rule.apply(func, target)
                if schedule is not None:
                    check_all_asked(func, taken)
            except ScheduleError as error:
                refusals.append(f"{type(rule).__name__}: {error}")
                _logger.info("kernel %s: %s", name, refusals[-1])
                continue
            if schedule is not None:
                attrs = {SCHEDULED: True, RULE: record_of(rule, schedule)}
                if DECISIONS in (func.attrs or {}):
                    attrs[DECISIONS] = in_force(func, taken)
                return schedule.mod["main"].with_attrs(attrs)
        if DECISIONS in (func.attrs or {}):
            _logger.warning("kernel %s: no rule can do as was decided for it (%s)", name, "; ".join(refusals))
            func = self._schedule(func.without_attr(DECISIONS), name)
        return func.with_attr(REFUSALS, refusals) if refusals else func


def kernel_rules(mod: IRModule) -> dict[str, dict]:
    """Kernel name -> ``name``, ``family`` and ``catch_all`` of the rule that made its schedule.

    Parameters
    ----------
    mod : tvm.IRModule
        A module after `ScheduleKernels`, lowered further or not.
    """
    functions = {gvar.name_hint: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    return {name: _rule(func) for name, func in functions.items()}


def _rule(func: tirx.PrimFunc) -> dict:
    record = record_on(func)
    if record is not None:
        return record
    library = int((func.attrs or {}).get(SCHEDULED, 0)) or _calls_library(func) or on_threads(func)
    return dict(LIBRARY if library else _NONE)


def _calls_library(func: tirx.PrimFunc) -> bool:
    return contains(func.body, ir.Call, lambda call: call.op.same_as(_CALL_PACKED))

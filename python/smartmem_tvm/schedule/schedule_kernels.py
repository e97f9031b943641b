# SPDX-License-Identifier: Apache-2.0
"""The pass that gives every kernel of a module its schedule."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from ..ir.exchange_constants import constant_operands
from ..ir.kernel import CONSTANTS, POSITIONS
from ..ir.walk import contains
from ..target import Limits, is_gpu, launches_early
from .choose import choose, rules_for
from .core.decisions import DECISIONS, given_rule, in_force
from .core.plans import PLAN, plan_on
from .core.positions import positions_of, with_zeros
from .core.rule import RULE, SCHEDULED, Rule, is_open, record_on, target_of
from .gpu.end_blocks import with_ends
from .gpu.fallback import on_threads

_CALL_PACKED = ir.Op.get("tirx.tvm_call_packed")
REFUSALS = "smartmem.schedule_refusals"
# Stand-ins for the rule of a kernel that TVM scheduled itself, and of one that no rule took.
LIBRARY = {"name": "TVM", "family": "operators that TVM dispatches to a kernel of its own", "catch_all": False}
_NONE = {"name": "-", "family": "no rule knows it: plain loops", "catch_all": True}
_logger = logging.getLogger(__name__)


@module_pass(opt_level=0, name="ScheduleKernels")
class ScheduleKernels:
    """Schedule every unscheduled S-TIR PrimFunc with the first rule that answers.

    Before: serial loop nests, one per stage. After: ``parallel``, ``vectorized`` and ``unrolled`` loops over tiles;
    the function carries ``tirx.is_scheduled``. Its attribute ``smartmem.rule`` holds the ``name``, the ``family`` in
    words and the ``catch_all`` of the rule that answered. Its attribute ``smartmem.plan`` holds the decisions and the
    price of that rule, and why the rules before it did not take the kernel (`core.plans`).

    Refuses (leaves as it is) functions that are scheduled already, are not S-TIR, or that no rule takes. A rule that
    raises ``ScheduleError`` counts as not answering; its message is logged and kept on the function as the attribute
    ``smartmem.schedule_refusals``. Decisions in a function's attribute (`decisions`) replace the rules' own; decisions
    that no rule can follow are dropped, with a warning.

    Parameters
    ----------
    rules : sequence of Rule, optional
        By default those for the kernel's target (`choose.rules_for`).
    """

    def __init__(self, rules: Sequence[Rule] | None = None):
        self.rules = list(rules) if rules is not None else None

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        result, weights = mod.clone(), constant_operands(mod) if _launches_early() else {}
        for name, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and is_open(func):
                func = func.with_attr(CONSTANTS, sorted(weights[name])) if name in weights else func
                with positions_of(func):
                    result[name] = self._schedule(func, name.name_hint)
            if isinstance(func, tirx.PrimFunc) and POSITIONS in (func.attrs or {}):
                done, target = with_zeros(result[name]), target_of(func, name.name_hint)
                result[name] = with_ends(done, Limits.of(target).processors) if is_gpu(target) else done
        return result

    def _schedule(self, func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
        target, wanted = target_of(func, name), given_rule(func)
        rules = rules_for(target) if self.rules is None else self.rules
        choice = choose(func, target, [each for each in rules if wanted in (None, each.name)])
        refusals = [f"{each.rule}: {each.reason}" for each in choice.rejected if each.raised]
        for each in refusals:
            _logger.info("kernel %s: %s", name, each)
        if choice.plan is not None:
            attrs = {SCHEDULED: True, RULE: choice.plan.record, PLAN: choice.as_json()}
            if DECISIONS in (func.attrs or {}):
                attrs[DECISIONS] = in_force(func, choice.plan.decisions)
            return choice.plan.func.with_attrs(attrs)
        if DECISIONS in (func.attrs or {}):
            _logger.warning("kernel %s: no rule can do as was decided for it (%s)", name, "; ".join(refusals))
            func = self._schedule(func.without_attr(DECISIONS), name)
        return func.with_attr(REFUSALS, refusals) if refusals else func


def _launches_early() -> bool:
    target = Target.current(allow_none=True)
    return target is not None and launches_early(target)


def kernel_rules(mod: IRModule) -> dict[str, dict]:
    """Return kernel name -> ``name``, ``family`` and ``catch_all`` of the rule that made its schedule.

    Parameters
    ----------
    mod : tvm.IRModule
        A module after `ScheduleKernels`, lowered further or not.
    """
    functions = {gvar.name_hint: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    return {name: _rule(func) for name, func in functions.items()}


def kernel_plans(mod: IRModule) -> dict[str, dict]:
    """Return kernel name -> its chosen plan and the rejected ones with reasons (`core.plans.Choice.as_json`).

    Kernels that no rule of this package scheduled are left out.

    Parameters
    ----------
    mod : tvm.IRModule
        A module after `ScheduleKernels`, before `without_plans`.
    """
    functions = {gvar.name_hint: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    return {name: plan for name, func in functions.items() if (plan := plan_on(func)) is not None}


def without_plans(mod: IRModule) -> IRModule:
    """Return the module without the attribute of plans: two kernels that differ in it only are equal in code."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and PLAN in (func.attrs or {}):
            result[gvar] = func.without_attr(PLAN)
    return result


def _rule(func: tirx.PrimFunc) -> dict:
    record = record_on(func)
    if record is not None:
        return record
    library = int((func.attrs or {}).get(SCHEDULED, 0)) or _calls_library(func) or on_threads(func)
    return dict(LIBRARY if library else _NONE)


def _calls_library(func: tirx.PrimFunc) -> bool:
    return contains(func.body, ir.Call, lambda call: call.op.same_as(_CALL_PACKED))

# SPDX-License-Identifier: Apache-2.0
"""The pass that gives every kernel of a module its schedule."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from .rule import Rule
from .rules import default_rules

SCHEDULED = "tirx.is_scheduled"
REFUSALS = "smartmem.schedule_refusals"
_logger = logging.getLogger(__name__)


@module_pass(opt_level=0, name="ScheduleKernels")
class ScheduleKernels:
    """Schedule every unscheduled S-TIR PrimFunc with the first rule that answers.

    Before: serial loop nests, one per stage. After: ``parallel``, ``vectorized`` and ``unrolled`` loops over tiles;
    the function carries ``tirx.is_scheduled``.

    Refuses (leaves as it is) functions that are scheduled already, are not S-TIR, or that no rule knows. A rule that
    raises ``ScheduleError`` counts as not answering; what it said is logged and kept on the function as the attribute
    ``smartmem.schedule_refusals``.

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
            if isinstance(func, tirx.PrimFunc) and _is_open(func):
                result[name] = self._schedule(func, name.name_hint)
        return result

    def _schedule(self, func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
        target, refusals = _target_of(func, name), []
        for rule in self.rules:
            try:
                schedule = rule.apply(func, target)
            except ScheduleError as error:
                refusals.append(f"{type(rule).__name__}: {error}")
                _logger.info("kernel %s: %s", name, refusals[-1])
                continue
            if schedule is not None:
                return schedule.mod["main"].with_attr(SCHEDULED, True)
        return func.with_attr(REFUSALS, refusals) if refusals else func


def _is_open(func: tirx.PrimFunc) -> bool:
    return isinstance(func.body, s_tir.SBlockRealize) and not int((func.attrs or {}).get(SCHEDULED, 0))


def _target_of(func: tirx.PrimFunc, name: str) -> Target:
    target = (func.attrs or {}).get("target") or Target.current(allow_none=True)
    if target is None:
        raise ValueError(
            f"ScheduleKernels: kernel {name} has no target; run the pass under `with target:` or after BindTarget."
        )
    return target

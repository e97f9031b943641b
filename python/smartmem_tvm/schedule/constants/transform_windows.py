# SPDX-License-Identifier: Apache-2.0
"""TransformWindows: 3 x 3 convolutions by Winograd's transforms, where that is faster and exact enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.kernel import DECISIONS, Opaque, parse
from ..choose import after, plan_of_schedule
from ..core.decisions import asking, declined, given_rule
from ..core.plans import PLAN, Choice, Plan
from ..core.rule import RULE, SCHEDULED, is_open, record_on, target_of
from ..cpu.matmul import Matmul
from ..cpu.params import CpuParams
from ..cpu.sequence import InSequence
from ..cpu.winograd.channel_plan import ChannelPlan
from ..cpu.winograd.plan import WinogradPlan
from ..cpu.winograd.rule import Winograd, transformed
from ..cpu.winograd.shape import Windows
from ..cpu.winograd.transforms import RESULTS, WINDOW, error_of
from ..cpu.winograd.winograd_work import worth

_MOST_ERROR = 1e-4 / 4  # of the largest result. Chosen: a quarter of the promised error, as a few tiles are measured


@module_pass(opt_level=0, name="TransformWindows")
class TransformWindows:
    """Do 3 x 3 convolutions by Winograd's transforms, F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3), where they are faster.

    Before: a convolution of stride 1 with constant weights, with its fused prologue and epilogue. After: a scheduled
    function with the same results, in 4 or 2.25 times fewer multiplications, whose weights are transformed at compile
    time. It carries the rule's name, ``Winograd``.

    Refuses (leaves as they are) other types than float32, windows of another size, strided or dilated ones, weights
    that are computed, kernels that would be slower by the model of time (`cost`), and weights with which the error on
    random tiles, in float32, is more than a quarter of 1e-4 of the largest result.

    Parameters
    ----------
    result : int, optional
        Lines, and columns, of the results of a tile: m of F(m x m, 3 x 3), to use wherever it is possible, whether or
        not it is faster.
    """

    def __init__(self, result: int | None = None):
        self.result = result

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        found, calls = {}, private_calls(mod)
        for gvar, positions in constant_operands(mod).items():
            func = mod[gvar]
            if is_open(func) and given_rule(func) is None and _may_have_windows(func):
                values = {position: partial(constants_of, calls[gvar], position) for position in positions}
                changed = _transformed(func, values, target_of(func, gvar.name_hint), self.result)
                found |= {gvar: changed} if changed is not None else {}
        return exchange(mod, found)


def _may_have_windows(func: tirx.PrimFunc) -> bool:
    """Whether a stage reduces along two iterators of extent 3; this rules out most kernels quickly."""
    try:
        stages = parse(func).stages
    except Opaque:
        return False
    return any([stage.extents[var] for var in stage.reduction].count(WINDOW) >= 2 for stage in stages)


def _transformed(
    func: tirx.PrimFunc, values: dict[int, Callable[[], list[np.ndarray]]], target: Target, result: int | None
) -> Exchange | None:
    """Return the kernel as a Winograd convolution, or None if it stays as it is."""
    plan, rule = _planned(func, values, target, result)
    if plan.reason:
        return None
    made, old = plan.func, rule.taken.windows.weights
    params = [rule.weights if param.same_as(old) else param for param in made.params]
    position = next(n for n, param in enumerate(func.params) if param.same_as(old))
    attrs = {**dict(made.attrs), SCHEDULED: True, RULE: plan.record, PLAN: Choice(plan).as_json()}
    changed = tirx.PrimFunc(params, made.body, made.ret_type).with_attrs(attrs)
    return Exchange(changed, {position: partial(transformed, rule.taken)})


def plan_in(mod: IRModule, gvar: ir.GlobalVar, target: Target) -> Plan:
    """Return the plan, or the refusal, of Winograd's transforms for an unscheduled kernel of a module."""
    calls = private_calls(mod).get(gvar, [])
    values = {at: partial(constants_of, calls, at) for at in constant_operands(mod).get(gvar, ())}
    return _planned(mod[gvar], values, target, None)[0]


def _planned(
    func: tirx.PrimFunc, values: dict[int, Callable[[], list[np.ndarray]]], target: Target, result: int | None
) -> tuple[Plan, Winograd]:
    arrays = {func.params[position]: each for position, each in values.items()}
    rule = Winograd(list(arrays), partial(_choose, arrays=arrays, result=result))
    made = None
    # Only rules after `Matmul` take the other stages, so a kernel with several products is left to the rules for those.
    with asking(func.without_attr(DECISIONS)) as account:
        if rule.runs_on(target) and _may_have_windows(func):
            made = InSequence([rule, *after(Matmul)]).function(func, target)
    if made is None or rule.taken is None:
        return Plan(rule.name, rule.family, reason=rule.reason), rule
    return plan_of_schedule(record_on(made), account, made), rule


def _choose(windows: Windows, params: CpuParams, arrays: dict, result: int | None) -> WinogradPlan | None:
    """Return the fastest plan that is exact enough, or None if the plain convolution is faster."""
    make = ChannelPlan if windows.innermost else WinogradPlan
    plans = [make(windows, each, params) for each in ([result] if result else RESULTS)]
    known = next(values for buffer, values in arrays.items() if buffer.same_as(windows.weights))()
    fast = plans if result else worth(plans)
    if not fast:
        return declined("the plain convolution takes less time, by the model of `cpu.cost`")
    found = next((plan for plan in fast if _is_exact(plan, known)), None)
    return declined(f"its error would be more than {_MOST_ERROR} of the largest result") if found is None else found


def _is_exact(plan: WinogradPlan, arrays: Sequence[np.ndarray]) -> bool:
    groups = [group for array in arrays for group in plan.windows.windows_of(array)]
    return all(error_of(plan.result, group) <= _MOST_ERROR for group in groups)

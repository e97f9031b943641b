# SPDX-License-Identifier: Apache-2.0
"""TransformWindows: 3 x 3 convolutions by Winograd's transforms, where that is faster and exact enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial

import numpy as np
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.kernel import DECISIONS, Opaque, parse
from ...ir.several_sizes import size_functions
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
from ..cpu.winograd.winograd_work import plain, work, worth
from .common_forms import FormReader, in_common, values_of

_MOST_ERROR = 1e-4 / 4  # of the largest result. Chosen: a quarter of the promised error, as a few tiles are measured


@module_pass(opt_level=0, name="TransformWindows")
class TransformWindows:
    """Do 3 x 3 convolutions by Winograd's transforms, F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3), where they are faster.

    Before: a convolution of stride 1 with constant weights, with its fused prologue and epilogue. After: a scheduled
    function with the same results, in 4 or 2.25 times fewer multiplications, whose weights are transformed at compile
    time. It carries the rule's name, ``Winograd``. Kernels of several sizes choose the form of a weight in common
    (`common_forms`).

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
        asked, calls = {}, private_calls(mod)
        for gvar, positions in constant_operands(mod).items():
            func = mod[gvar]
            if is_open(func) and given_rule(func) is None and _may_have_windows(func):
                values = {position: partial(constants_of, calls[gvar], position) for position in positions}
                asked[gvar] = _Asked(func, values, target_of(func, gvar.name_hint), self.result)
        if size_functions(mod) and self.result is None:
            readers = {gvar: each.reader() for gvar, each in asked.items() if each.windows is not None}
            for gvar, form in in_common(mod, readers).items():
                asked[gvar] = asked[gvar].in_form(form)
        return exchange(mod, {gvar: each.exchange for gvar, each in asked.items() if each.exchange is not None})


def _may_have_windows(func: tirx.PrimFunc) -> bool:
    """Whether a stage reduces along two iterators of extent 3; this rules out most kernels quickly."""
    try:
        stages = parse(func).stages
    except Opaque:
        return False
    return any([stage.extents[var] for var in stage.reduction].count(WINDOW) >= 2 for stage in stages)


class _Asked:
    """A kernel that was asked whether it is to be a Winograd convolution, and the answer.

    Parameters
    ----------
    values : dict
        Position of a constant -> a function that returns its values in all calls.
    result : int or None
        As of `TransformWindows`.
    form : tuple or None
        Result and panel of the transformed weights if they are given, ``()`` for weights as they are.

    Attributes
    ----------
    exchange : Exchange or None
        None if the kernel stays as it is.
    windows : Windows or None
        The convolution, if there is one of which the rule compared prices.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        values: dict[int, Callable[[], list[np.ndarray]]],
        target: Target,
        result: int | None,
        form: tuple | None = None,
    ):
        self._kernel, self.values = (func, values, target, result), values
        self.windows, self._context = None, None
        self.exchange = None if form == () else self._answer(form)

    def _answer(self, form: tuple | None) -> Exchange | None:
        func, values, target, result = self._kernel

        def look(windows: Windows, params: CpuParams) -> None:
            self.windows, self.params, self._context = windows, params, copy_context()

        plan, rule = _planned(func, values, target, result, form, look)
        self.own = () if plan.reason else form_of(rule.taken)
        if plan.reason:
            return None
        made, old = plan.func, rule.taken.windows.weights
        params = [rule.weights if param.same_as(old) else param for param in made.params]
        position = next(n for n, param in enumerate(func.params) if param.same_as(old))
        attrs = {**dict(made.attrs), SCHEDULED: True, RULE: plan.record, PLAN: Choice(plan).as_json()}
        changed = tirx.PrimFunc(params, made.body, made.ret_type).with_attrs(attrs)
        return Exchange(changed, {position: partial(transformed, rule.taken)})

    def in_form(self, form: tuple) -> _Asked:
        """Return the answer with a given form of the weights."""
        return _Asked(*self._kernel, form)

    def reader(self) -> FormReader:
        """Return the kernel as a reader of weights, whose form other sizes may choose."""
        func, windows = self._kernel[0], self.windows
        position = next(n for n, param in enumerate(func.params) if param.same_as(windows.weights))
        self._arrays = self.values[position]()
        return FormReader(
            self.own, values_of(self._arrays), lambda form: self._context.run(self._price, form), self._size
        )

    def _price(self, form: tuple) -> float | None:
        if not form:
            return plain(
                self.windows, self.params, plan_for(self.windows, RESULTS[0], self.params).threads
            ).price.cycles
        plan = plan_for(self.windows, form[0], self.params, form[1])
        fits = form_of(plan) == form and (form == self.own or _is_exact(plan, self._arrays))
        return work(plan).price.cycles if fits else None

    def _size(self, form: tuple) -> int:
        points = (form[0] + WINDOW - 1) ** 2 if form else WINDOW**2
        return self._arrays[0].nbytes // WINDOW**2 * points


def plan_for(windows: Windows, result: int, params: CpuParams, panel: int | None = None) -> WinogradPlan:
    """Return the plan of a convolution for tiles of `result` lines, and panels of a given width, if any."""
    return (ChannelPlan if windows.innermost else WinogradPlan)(windows, result, params, panel)


def form_of(plan: WinogradPlan) -> tuple[int, int]:
    """Return what decides how the transformed weights lie in memory."""
    return plan.result, plan.panel


def plan_in(mod: IRModule, gvar: ir.GlobalVar, target: Target) -> Plan:
    """Return the plan, or the refusal, of Winograd's transforms for an unscheduled kernel of a module."""
    calls = private_calls(mod).get(gvar, [])
    values = {at: partial(constants_of, calls, at) for at in constant_operands(mod).get(gvar, ())}
    return _planned(mod[gvar], values, target, None)[0]


def _planned(
    func: tirx.PrimFunc,
    values: dict[int, Callable[[], list[np.ndarray]]],
    target: Target,
    result: int | None,
    form: tuple[int, int] | None = None,
    look: Callable[[Windows, CpuParams], None] = lambda *_: None,
) -> tuple[Plan, Winograd]:
    arrays = {func.params[position]: each for position, each in values.items()}

    def choose(windows: Windows, params: CpuParams) -> WinogradPlan | None:
        look(windows, params)
        if form is not None:
            return plan_for(windows, form[0], params, form[1])
        return _choose(windows, params, arrays=arrays, result=result)

    rule = Winograd(list(arrays), choose)
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
    plans = [plan_for(windows, each, params) for each in ([result] if result else RESULTS)]
    known = next(values for buffer, values in arrays.items() if buffer.same_as(windows.weights))()
    fast = plans if result else worth(plans)
    if not fast:
        return declined("the plain convolution takes less time, by the model of `cpu.cost`")
    found = next((plan for plan in fast if _is_exact(plan, known)), None)
    return declined(f"its error would be more than {_MOST_ERROR} of the largest result") if found is None else found


def _is_exact(plan: WinogradPlan, arrays: Sequence[np.ndarray]) -> bool:
    groups = [group for array in arrays for group in plan.windows.windows_of(array)]
    return all(error_of(plan.result, group) <= _MOST_ERROR for group in groups)

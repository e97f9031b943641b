# SPDX-License-Identifier: Apache-2.0
"""The one owner of the order of rules: which are asked about a kernel, one after the other, and which is picked.

A rule is asked for its plan of a kernel, and says no with a reason (`core.decisions.declined`), or how it would run it,
and at which price where it has a model of time (`core.decisions.priced`). The first that takes a kernel has it: who
knows more of a kernel is asked before who knows less. A tuner, or a record of one, may give a kernel to another one of
those that can take it (`core.rivals`).

Whoever wants to know what becomes of a kernel asks here: the pass that schedules, the price of a fusion, the tuner, the
passes that bring constants into the forms that plans read (`constants`), and ``smartmem explain --why``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from tvm import tirx
from tvm.s_tir import dlight
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ..ir.kernel import Kernel
from ..target import is_cpu
from .core.decisions import Account, asking, attempt, check_all_asked
from .core.plans import Choice, Plan
from .core.rule import NestRule, Rule, record_of
from .cpu.attention import RowChains
from .cpu.depthwise import Depthwise
from .cpu.elementwise import Elementwise
from .cpu.fallback import Fallback
from .cpu.matmul import Matmul
from .cpu.rounded_product import RoundedProduct
from .cpu.rows import Rows
from .cpu.sequence import InSequence
from .cpu.slide import Slide
from .cpu.steps import Steps
from .cpu.window import Window
from .gpu.attention.attention import GpuRowChains
from .gpu.attention.matrix_attention import GpuMatrixAttention
from .gpu.chain import GpuChain
from .gpu.dlight_rules import OneThreadEach, Shared, Tiled, TvmRule
from .gpu.elementwise import GpuElementwise
from .gpu.fallback import GpuLoops
from .gpu.matmul.matmul import GpuMatmul
from .gpu.matrix.matrix import GpuMatrix
from .gpu.rows.rows import GpuRows
from .gpu.sequence import GpuSequence
from .gpu.window.window import TexelReduction, WindowProduct, WindowRule, WindowSlide


def _cpu_families() -> list[NestRule]:
    # A window is a reduction too, and a convolution a matmul: who knows more is asked first.
    return [Depthwise(), RoundedProduct(), Slide(), Matmul(), Window(), RowChains(), Rows(), Elementwise()]


def _gpu_families() -> list[NestRule]:
    products = [GpuMatrix(), *window_rules(), GpuMatmul()]
    return [*products, GpuMatrixAttention(), GpuRowChains(), GpuRows(), GpuElementwise()]


def window_rules() -> list[WindowRule]:
    """Those for windows on a GPU."""
    return [WindowProduct(), WindowSlide(), TexelReduction()]


def dlight_rules() -> list[Rule]:
    """Those rules of TVM's default pipeline that can be relied on, in its order, and what is ours between and after.

    Left out are TVM's ``Reduction``, with which a thread may read sums that another one holds in its registers (a
    grouped convolution of 1x1 with a bias comes out wrong), and its special case ``GEMV``.
    """
    return [Tiled(), OneThreadEach(), Shared(), TvmRule(dlight.gpu.Fallback()), GpuLoops()]


def cpu_rules() -> list[Rule]:
    """Those for CPUs, in their order."""
    families = _cpu_families()
    return [*families, InSequence([*families, Fallback()]), Steps()]


def gpu_rules() -> list[Rule]:
    """Those for GPUs, in their order; TVM's own come last."""
    families = _gpu_families()
    return [GpuChain(), *families, GpuSequence(families), *dlight_rules()]


def default_rules() -> list[Rule]:
    """All rules; those for one kind of target return None for another."""
    return [*cpu_rules(), *gpu_rules()]


def rules_for(target: Target) -> list[Rule]:
    """The rules for a target, in the order in which they are asked."""
    return cpu_rules() if is_cpu(target) else gpu_rules()


def before(rule: type[NestRule]) -> list[NestRule]:
    """The families of kernels that are asked for before those of a rule."""
    families = _family_of(rule)
    return families[: _place(families, rule)]


def after(rule: type[NestRule]) -> list[NestRule]:
    """The families of kernels that are asked for after those of a rule."""
    families = _family_of(rule)
    return families[_place(families, rule) + 1 :]


def _family_of(rule: type[NestRule]) -> list[NestRule]:
    return next(each for each in (_cpu_families(), _gpu_families()) if any(type(one) is rule for one in each))


def _place(families: Sequence[NestRule], rule: type[NestRule]) -> int:
    return next(number for number, each in enumerate(families) if type(each) is rule)


def first_of(rules: Collection[NestRule], kernel: Kernel, params) -> tuple[NestRule, object | None] | None:
    """The first of some rules that takes a prepared kernel, and its plan; None if none does. No loop is written.

    A rule that takes it and cannot do as was decided for it counts, with None for the plan: without that it could.

    Parameters
    ----------
    kernel : Kernel
        As the rules' `NestRule.prepare` makes it; they have that in common.
    params : object
        The parameters of the rules, which they have in common too.
    """
    for rule in rules:
        try:
            plan = attempt(partial(rule.plan, kernel, params))
        except ScheduleError:
            return rule, None
        if plan is not None:
            return rule, plan
    return None


def taken_before(rule: type[NestRule], func: tirx.PrimFunc, target: Target) -> bool:
    """Whether a rule that is asked before another one has a plan of an unscheduled kernel; no loop is written."""
    return any(attempt(partial(each.planned, func, target)) is not None for each in before(rule))


def plan_of(rule: Rule, func: tirx.PrimFunc, target: Target) -> Plan:
    """What one rule answers about an unscheduled kernel.

    Decisions that the kernel brings along (`core.decisions`) take the place of the rule's own; if some of them were for
    another kernel, the rule does not take it.
    """
    with asking(func) as account:
        try:
            schedule = rule.apply(func, target)
            if schedule is not None:
                check_all_asked(func, account.taken)
        except ScheduleError as error:
            return Plan(rule.name, rule.family, rule.catch_all, reason=str(error), raised=True)
    if schedule is None:
        return Plan(rule.name, rule.family, rule.catch_all, reason=account.reason or f"it is for {rule.family}")
    return taken(record_of(rule, schedule), account, schedule.mod["main"])


def taken(record: dict, account: Account, func: tirx.PrimFunc) -> Plan:
    """The plan of a scheduled kernel, whose rule is on `record`, by what was said on an account."""
    known = record["name"], record["family"], record["catch_all"]
    return Plan(*known, tuple(account.taken), tuple(account.prices), dict(account.notes), func=func)


def plans(func: tirx.PrimFunc, target: Target, rules: Sequence[Rule] | None = None) -> Iterator[Plan]:
    """What each rule answers about an unscheduled kernel, in their order; one is asked when its answer is wanted.

    Parameters
    ----------
    rules : sequence of Rule, optional
        By default those for the target.
    """
    for rule in rules_for(target) if rules is None else rules:
        yield plan_of(rule, func, target)


def choose(func: tirx.PrimFunc, target: Target, rules: Sequence[Rule] | None = None) -> Choice:
    """The plan of the first rule that takes an unscheduled kernel, and why those before it do not.

    Parameters
    ----------
    rules : sequence of Rule, optional
        By default those for the target.
    """
    rejected = []
    for plan in plans(func, target, rules):
        if not plan.reason:
            return Choice(plan, rejected)
        rejected.append(plan)
    return Choice(None, rejected)

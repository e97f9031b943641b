# SPDX-License-Identifier: Apache-2.0
"""The order of the rules, and the choice of one for a kernel.

Each rule in turn is asked for its plan of a kernel. It declines with a reason (`core.decisions.declined`), or it
returns a plan, with a price where it has a model of time (`core.decisions.priced`). The first rule that returns a plan
gets the kernel, so special rules stand before general ones. A tuner, or a tuning record, may give the kernel to a rival
of that rule instead (`core.rivals`).

No other module holds this order. Winograd's rule is not in it: it changes weights, so the pass
`constants.transform_windows` asks it before the kernels are scheduled. The callers are the pass that schedules, the
price of a fusion, the tuner, the passes that bring constants into the forms that plans read (`constants`), and
``smartmem explain --why``.
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
from .cpu.bfloat16_product import Bfloat16Product
from .cpu.coded_product import CodedProduct
from .cpu.depthwise import Depthwise
from .cpu.elementwise import Elementwise
from .cpu.fallback import Fallback
from .cpu.matmul import Matmul
from .cpu.rows import Rows
from .cpu.sequence import InSequence
from .cpu.slide import Slide
from .cpu.steps import Steps
from .cpu.window import Window
from .cpu.within_length import WithinLength
from .gpu.attention.flash_attention import GpuMatrixAttention
from .gpu.attention.over_keys import GpuOverKeys
from .gpu.attention.row_chains import GpuRowChains
from .gpu.chain import GpuChain
from .gpu.dlight_rules import OneThreadEach, Shared, Tiled, TvmRule
from .gpu.elementwise import GpuElementwise
from .gpu.fallback import GpuLoops
from .gpu.matmul.coded import GpuCoded
from .gpu.matmul.few_rows import GpuFewRows
from .gpu.matmul.matmul import GpuMatmul
from .gpu.matrix.matrix import GpuMatrix
from .gpu.rows.rows import GpuRows
from .gpu.sequence import GpuSequence
from .gpu.window.window import TexelReduction, WindowProduct, WindowRule, WindowSlide


def _cpu_families() -> list[NestRule]:
    # A window is also a reduction, and a convolution also a matmul: the special rules come first.
    products = [Bfloat16Product(), Slide(), CodedProduct(), Matmul()]
    return [Depthwise(), *products, Window(), RowChains(), Rows(), Elementwise()]


def _gpu_families() -> list[NestRule]:
    products = [GpuCoded(), GpuFewRows(), GpuMatrix(), *window_rules(), GpuMatmul()]
    return [*products, GpuOverKeys(), GpuMatrixAttention(), GpuRowChains(), GpuRows(), GpuElementwise()]


def window_rules() -> list[WindowRule]:
    """Return the rules for windows on a GPU."""
    return [WindowProduct(), WindowSlide(), TexelReduction()]


def dlight_rules() -> list[Rule]:
    """Return the rules of TVM's default GPU pipeline that give right results, in its order, and two of this package.

    These are `OneThreadEach`, the second, and `GpuLoops`, the last.

    TVM's ``Reduction`` is left out, and so is its special case ``GEMV``. With ``Reduction`` a thread may read sums that
    another thread holds in its registers: a grouped 1x1 convolution with a bias gives wrong results.
    """
    return [Tiled(), OneThreadEach(), Shared(), TvmRule(dlight.gpu.Fallback()), GpuLoops()]


def cpu_rules() -> list[Rule]:
    """Return the rules for CPUs, in their order."""
    families = _cpu_families()
    apart = [each for each in families if not isinstance(each, RowChains)]
    bounded = WithinLength([*families], InSequence([*apart, Fallback()]))
    return [bounded, *families, InSequence([*families, Fallback()]), Steps()]


def gpu_rules() -> list[Rule]:
    """Return the rules for GPUs, in their order; `dlight_rules` come last."""
    families = _gpu_families()
    return [GpuChain(), *families, GpuSequence(families), *dlight_rules()]


def default_rules() -> list[Rule]:
    """Return all rules; a rule declines a target of another kind."""
    return [*cpu_rules(), *gpu_rules()]


def rules_for(target: Target) -> list[Rule]:
    """Return the rules for a target, in the order in which they are asked."""
    return cpu_rules() if is_cpu(target) else gpu_rules()


def before(rule: type[NestRule]) -> list[NestRule]:
    """Return the rules that stand before `rule` in its list: that of the families on a CPU, or on a GPU."""
    families = _family_of(rule)
    return families[: _place(families, rule)]


def after(rule: type[NestRule]) -> list[NestRule]:
    """Return the rules that stand after `rule` in its list: that of the families on a CPU, or on a GPU."""
    families = _family_of(rule)
    return families[_place(families, rule) + 1 :]


def _family_of(rule: type[NestRule]) -> list[NestRule]:
    return next(each for each in (_cpu_families(), _gpu_families()) if any(type(one) is rule for one in each))


def _place(families: Sequence[NestRule], rule: type[NestRule]) -> int:
    return next(number for number, each in enumerate(families) if type(each) is rule)


def first_of(rules: Collection[NestRule], kernel: Kernel, params) -> tuple[NestRule, object | None] | None:
    """Return the first of some rules that takes a prepared kernel, and its plan, without emitting a loop nest.

    The result is None if no rule takes the kernel. A rule that raises ScheduleError, because it cannot follow the
    decisions in the kernel's attribute, counts as taking the kernel, but without a plan: the second item is None.

    Parameters
    ----------
    kernel : Kernel
        As `NestRule.prepare` returns it, which is the same for all of the rules.
    params : object
        The parameters of the rules, also the same for all of them.
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
    """Whether a rule that is asked before `rule` has a plan for an unscheduled kernel; no loop nest is emitted."""
    return any(attempt(partial(each.planned, func, target)) is not None for each in before(rule))


def plan_of(rule: Rule, func: tirx.PrimFunc, target: Target) -> Plan:
    """Return the plan of one rule for an unscheduled kernel.

    Decisions in the kernel's attribute (`core.decisions`) replace the rule's own. If the rule does not ask for some of
    them, they were made for another kernel, and the rule does not take this one.
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
    return plan_of_schedule(record_of(rule, schedule), account, schedule.mod["main"])


def plan_of_schedule(record: dict, account: Account, func: tirx.PrimFunc) -> Plan:
    """Return the plan of a scheduled kernel: its rule's record, and the decisions, prices and notes on an account."""
    known = record["name"], record["family"], record["catch_all"]
    return Plan(*known, tuple(account.taken), tuple(account.prices), dict(account.notes), func=func)


def plans(func: tirx.PrimFunc, target: Target, rules: Sequence[Rule] | None = None) -> Iterator[Plan]:
    """Yield the plan of each rule for an unscheduled kernel, in order; a rule runs when its plan is requested.

    Parameters
    ----------
    rules : sequence of Rule, optional
        By default those for the target.
    """
    for rule in rules_for(target) if rules is None else rules:
        yield plan_of(rule, func, target)


def choose(func: tirx.PrimFunc, target: Target, rules: Sequence[Rule] | None = None) -> Choice:
    """Return the plan of the first rule that takes an unscheduled kernel, and the reasons of the rules before it.

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

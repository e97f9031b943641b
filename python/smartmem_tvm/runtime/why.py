# SPDX-License-Identifier: Apache-2.0
"""Explain one kernel's schedule: the chosen plan, the rejected plans, their prices, and the roofline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches

import tvm
from tvm import tirx
from tvm.target import Target

from ..analysis.roofline import Speed
from ..errors import UserError
from ..graph_report import explain
from ..ir.graph import read_log
from ..ir.kernel import DECISIONS, Opaque, parse
from ..pipeline import Options, Phase, lower_phases, run_phases
from ..schedule.choose import plans
from ..schedule.constants.transform_windows import plan_in
from ..schedule.core.plans import Plan, Price, plan_on
from ..schedule.core.rule import is_open
from ..schedule.cpu.params import CpuParams
from ..schedule.gpu.machine import Processor
from ..schedule.price import nest_price
from ..schedule.schedule_kernels import kernel_rules
from ..target import Limits, is_cpu
from ..tune.apply_records import tuning_of
from ..tvm_lock import one_at_a_time
from .kernel_bounds import KernelBound, roofline

_NEAREST = 3  # similar names that an error message offers in place of an unknown one
_FORMS = ("transform-windows", "apply-records", "pack-weights", "schedule-kernels")
_VECTORS = 2  # vector FMAs that a core starts in a cycle, as in the cost models of the CPU rules


@one_at_a_time
def why(graph: tvm.IRModule, target: Target, options: Options, kernel: str) -> dict:
    """Return the facts about one kernel's schedule and the choice of it.

    Parameters
    ----------
    graph : tvm.IRModule
        The module after the graph passes (`deploy.build.optimize`).
    options : Options
        The options that the graph was made with.
    kernel : str
        The kernel's name, or its number among the kernels that an inference launches, from 1.

    Returns
    -------
    dict
        ``kernel``, ``number``, ``of`` (number of kernels), ``launches`` (numbers of all of its launches), ``results``,
        ``operators``, ``views``; ``parameters``: ``name``, ``shape``, ``dtype`` and ``role`` of each; ``rule``,
        ``family``, ``catch_all``; ``plan``: ``decisions``, ``facts``, ``notes`` (values that no tuner varies),
        ``prices`` and ``loops`` (see `_plan`), None where no rule of this package made the schedule; ``others``: the
        same, or a ``reason``, of each other rule in the order of the rules; ``log``: notes of the passes about the
        kernel; ``tuned``: see `tune.apply_records.tuning_of`; ``roofline``; ``clock``: cycles per second, which turn
        prices into seconds, None where the device is not known.

    Raises
    ------
    UserError
        If there is no such kernel, or schedules are switched off.
    """
    launched = explain(graph)["kernels"]
    name = named(kernel, [each["kernel"] for each in launched])
    with target:
        stages = _Stages.of(graph, target, options)
        mine = [(number, each) for number, each in enumerate(launched, start=1) if each["kernel"] == name]
        found = _of_kernel(name, stages, target)
    speed, bounds = roofline(graph, target)
    clock = clock_of(target, speed)
    for plan in [found["plan"] or {}, *found["others"]]:
        for price in [*plan.get("prices", ()), *filter(None, [plan.get("loops")])]:
            price["seconds"] = price["cycles"] / price["shared"] / clock if clock else None
    return {
        "kernel": name,
        "number": mine[0][0],
        "of": len(launched),
        "launches": [number for number, _ in mine],
        "results": [each["result"] for _, each in mine],
        "operators": mine[0][1]["members"],
        "views": mine[0][1]["views"],
        "parameters": _parameters(graph[name]),
        **found,
        "log": [each for each in read_log(stages.scheduled) if each.get("kernel") == name],
        "roofline": _bound(bounds.get(name), speed),
        "clock": clock,
    }


def named(kernel: str, names: Iterable[str]) -> str:
    """Return the kernel's name that a user's name or number refers to.

    Raises
    ------
    UserError
        If there is none.
    """
    names = list(names)
    if kernel in names:
        return kernel
    if kernel.isdecimal() and 0 < int(kernel) <= len(names):
        return names[int(kernel) - 1]
    if kernel.isdecimal():
        raise UserError(f"There is no kernel number {kernel}: an inference launches {len(names)}, numbered from 1.")
    within = [each for each in dict.fromkeys(names) if kernel.lower() in each.lower()]
    near = [*within, *get_close_matches(kernel, dict.fromkeys(names), _NEAREST, 0.0)]
    offered = ", ".join(f"'{each}'" for each in dict.fromkeys(near[:_NEAREST]))
    raise UserError(
        f"No kernel is called '{kernel}': the nearest names are {offered or 'none'}; give one of those that "
        f"explain --all prints, or its number."
    )


def clock_of(target: Target, speed: Speed | None) -> float | None:
    """Return the cycles per second of the rules' cost models: the rate at which only FMAs would reach the peak."""
    if speed is None:
        return None
    rate = speed.rate("float32")
    if is_cpu(target):
        return rate / ((speed.threads or 1) * _VECTORS * CpuParams.of(target).lanes)
    return rate / (Limits.of(target).processors * Processor().lanes)


@dataclass(frozen=True)
class _Stages:
    """The kernels of a graph before and after scheduling.

    Attributes
    ----------
    open : IRModule
        Before any kernel is scheduled, and before constants are in the forms that plans read.
    scheduled : IRModule
    """

    open: tvm.IRModule
    scheduled: tvm.IRModule

    @classmethod
    def of(cls, graph: tvm.IRModule, target: Target, options: Options) -> _Stages:
        """Run the passes of the phase that schedules."""
        quiet = replace(options, check=None, dump_dir=None)
        phase = next(each for each in lower_phases(target) if each.name == "schedule")
        passes = phase.chosen(quiet)
        if "schedule-kernels" not in passes:
            raise UserError("Kernels have no plans where schedules are switched off: leave out --no-schedule.")
        first = next(n for n, each in enumerate(passes) if each in _FORMS)
        last = passes.index("schedule-kernels") + 1
        opened = run_phases(graph, (Phase("schedule", tuple(passes[:first])),), quiet)
        return cls(opened, run_phases(opened, (Phase("schedule", tuple(passes[first:last])),), quiet))


def _parameters(func: tirx.PrimFunc) -> list[dict]:
    """Return the inputs and outputs of a kernel as the graph has them."""
    try:
        outputs = [*parse(func).outputs]
    except Opaque:
        outputs = []
    rows = []
    for param in filter(tirx.is_buffer_var, func.params):
        role = "output" if any(param.same_as(each) for each in outputs) else "input"
        dims = [int(dim) if isinstance(dim, tirx.IntImm) else str(dim) for dim in param.shape]
        rows.append({"name": param.name, "shape": dims, "dtype": str(param.dtype), "role": role})
    return rows


def _of_kernel(name: str, stages: _Stages, target: Target) -> dict:
    """Return the chosen plan, and the other rules' answers for the kernel before its constants changed their form."""
    func, variable = stages.scheduled[name], stages.open.get_global_var(name)
    record, kept = kernel_rules(stages.scheduled)[name], plan_on(func)
    chosen = kept["chosen"] if kept is not None else None
    plain = stages.open[variable].without_attr(DECISIONS)
    plan = None
    if chosen is not None:
        loops = _loops(func, plain, target)
        plan = {key: chosen[key] for key in ("decisions", "facts", "notes", "prices")} | {"loops": loops}
    others = []
    if is_open(plain):
        first = [plan_in(stages.open, variable, target)] if is_cpu(target) else []
        asked = [*first, *plans(plain, target)]
        others = [_plan(each, plain, target) for each in asked if each.rule != record["name"]]
    told = tuning_of(stages.scheduled).get(name)
    known = {"rule": record["name"], "family": record["family"], "catch_all": bool(record["catch_all"])}
    return {**known, "plan": plan, "others": others, "tuned": told}


def _plan(plan: Plan, func: tirx.PrimFunc, target: Target) -> dict:
    """Return a rule's answer as plain data: the ``reason`` of a refusal, or its plan and price.

    ``prices`` come from the rule's own cost models, one for each run of the kernel that has one; ``loops`` is counted
    in the loops of the schedule, on a CPU: the same measure for all rules.
    """
    if plan.reason:
        return {"rule": plan.rule, "family": plan.family, "reason": plan.reason}
    return {**plan.as_dict(), "reason": None, "loops": _loops(plan.func, func, target)}


def _loops(scheduled: tirx.PrimFunc, func: tirx.PrimFunc, target: Target) -> dict | None:
    if not is_cpu(target):
        return None
    try:
        price: Price = nest_price(scheduled, parse(func), CpuParams.of(target))
    except Opaque:
        return None
    return price.as_dict()


def _bound(found: KernelBound | None, speed: Speed | None) -> dict:
    """Return the least time of a launch, in seconds, and its parts."""
    if found is None or found.bound is None or speed is None:
        unknown = "how fast the device is, is not known" if speed is None else found.reason if found else "no loops"
        return {"seconds": None, "reason": unknown}
    bound = found.bound
    parts = {"arithmetic": bound.arithmetic, "memory": bound.memory, "launch": bound.launch}
    known = {"seconds": bound.seconds, "by": bound.by, "parts": parts}
    return {**known, "work": found.work.as_dict(), "device": speed.name}

# SPDX-License-Identifier: Apache-2.0
"""A kernel to tune: the decisions of its rule, the alternatives, and its schedule for given decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ..ir.kernel import CONSTANTS, emit, factors_attr
from ..ir.regions import reads_joined
from ..schedule import ScheduleKernels
from ..schedule.choose import choose, plan_of, rules_for
from ..schedule.constants.pack_weights import packing_of
from ..schedule.core.decisions import DECISIONS, RULE_GENE, Decision, deciding
from ..schedule.core.plans import PLAN, Plan
from ..schedule.core.rivals import NUMBERED, RIVALS
from ..schedule.core.rule import Rule
from ..schedule.schedule_kernels import REFUSALS
from .decision_space import seed_of, space_of
from .genetic import Space, Value


@dataclass(frozen=True, eq=False)
class TunableKernel:
    """An unscheduled kernel whose rule takes decisions.

    Attributes
    ----------
    func : PrimFunc
        The kernel before `PackWeights`; ``layout_free_buffers`` lists the arguments that are constants.
    target : tvm.target.Target
    rule : str
        The rule that schedules it.
    decisions : tuple of Decision
        The decisions that the rule takes by default.
    rivals : dict
        Other rules that could schedule it -> their default decisions (`schedule.core.rivals`).
    """

    func: tirx.PrimFunc
    target: Target
    rule: str
    decisions: tuple[Decision, ...]
    rivals: Mapping[str, tuple[Decision, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, func: tirx.PrimFunc, target: Target) -> TunableKernel | None:
        """Return the kernel, or None if no rule can schedule it, or the rule takes no decision."""
        packed = _packed(func, target)
        plan = choose(packed[0], target).plan
        decisions = _decisions(func, packed, plan)
        if not decisions:
            return None
        rivals = [each for each in rules_for(target) if each.name in RIVALS.get(plan.rule, ())]
        return cls(func, target, plan.rule, decisions, _rivals(func, target, rivals))

    @cached_property
    def space(self) -> Space:
        """The search space of alternative decisions."""
        return space_of(self.decisions, self.rule, self.rivals)

    @property
    def seed(self) -> dict[str, Value]:
        """The genome of the rule's default decisions."""
        return seed_of(self.decisions, self.rule, self.rivals)

    def scheduled(self, genome: Mapping[str, Value] | None = None) -> tirx.PrimFunc:
        """Return the scheduled kernel; its constant parameters have their packed shapes.

        Parameters
        ----------
        genome : mapping, optional
            Decisions, by default those of the rule.

        Raises
        ------
        ScheduleError
            If the rule cannot follow the decisions.
        """
        return scheduled(self.func if genome is None else _with_decisions(self.func, genome), self.target)

    def arguments(self, genome: Mapping[str, Value]) -> list[tuple[str, list[int]]]:
        """Return the element type and shape of each parameter of the kernel for a genome.

        Raises
        ------
        ScheduleError
            If the rule cannot follow the decisions.
        """
        func = _packed(_with_decisions(self.func, genome), self.target)[0]
        return [(str(param.dtype), [int(dim) for dim in param.shape]) for param in func.params]


def _decisions(
    func: tirx.PrimFunc, packed: tuple[tirx.PrimFunc, list[Decision]], plan: Plan | None
) -> tuple[Decision, ...]:
    """Return the decisions of a plan about a kernel; none without a plan, or if the plan was refused."""
    reader, looked = packed
    # The decisions on packed constants are taken by the packing, not by the kernel that reads them.
    return () if plan is None or plan.reason else tuple(plan.decisions if reader is func else looked)


def _rivals(func: tirx.PrimFunc, target: Target, rules: Iterable[Rule]) -> dict[str, tuple[Decision, ...]]:
    found = {}
    for rule in rules:
        given = _with_decisions(func, {RULE_GENE: NUMBERED.index(rule.name)})
        packed = _packed(given, target)
        decisions = _decisions(given, packed, plan_of(rule, packed[0], target))
        if decisions:
            found[rule.name] = decisions
    return found


def with_constants(func: tirx.PrimFunc, positions: Iterable[int]) -> tirx.PrimFunc:
    """Return a kernel with only two attributes: its constant parameters, and the factors that may be rounded.

    Other attributes of passes do not make it a different kernel. Blocks get distinct names, as TVM's search requires.
    """
    attrs = {"s_tir": True, "tirx.noalias": True, CONSTANTS: sorted(positions), **factors_attr(func)}
    plain = tirx.PrimFunc(func.params, _distinct(func.body), func.ret_type)
    return plain.with_attrs({name: value for name, value in attrs.items() if value != []})


def _distinct(body: tirx.Stmt) -> tirx.Stmt:
    """Return a body in which all blocks have distinct names."""
    seen: Counter = Counter()

    def rename(block: s_tir.SBlock) -> s_tir.SBlock:
        seen[block.name_hint] += 1
        if seen[block.name_hint] == 1:
            return block
        name = f"{block.name_hint}_{seen[block.name_hint]}"
        access = (block.reads, block.writes)
        inside = (block.body, block.init, block.alloc_buffers, block.match_buffers, block.annotations)
        return s_tir.SBlock(block.iter_vars, *access, name, *inside)

    return tvm_ffi.structural_map(body, (s_tir.SBlock, rename))


def workload(func: tirx.PrimFunc) -> tvm.IRModule:
    """Return a kernel as a workload of MetaSchedule's tasks and databases."""
    return tvm.IRModule({"main": reads_joined(func).with_attr("global_symbol", "main")})


def _with_decisions(func: tirx.PrimFunc, genome: Mapping[str, Value]) -> tirx.PrimFunc:
    return func.with_attr(DECISIONS, {name: int(value) for name, value in genome.items()})


def scheduled(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return an unscheduled kernel with its constants packed, scheduled by its decisions.

    Raises
    ------
    ScheduleError
        If no rule can schedule it, or none can follow the decisions.
    """
    decided = DECISIONS in (func.attrs or {})
    packed = _packed(func, target)[0].with_attr("global_symbol", "main")
    with target:
        result = ScheduleKernels()(tvm.IRModule({"main": packed}))["main"]
    attrs = result.attrs or {}
    if REFUSALS in attrs or (decided and DECISIONS not in attrs):
        raise ScheduleError("; ".join(attrs.get(REFUSALS) or ["no rule can do as was decided"]))
    return result.without_attr(PLAN)  # so that equal kernels compare equal, however they were chosen


def _packed(func: tirx.PrimFunc, target: Target) -> tuple[tirx.PrimFunc, list[Decision]]:
    """Return a kernel that reads its constants as `PackWeights` would store them, and the decisions for that."""
    constants = [int(position) for position in (func.attrs or {}).get(CONSTANTS) or ()]
    with deciding(func) as taken:
        packing = packing_of(func, constants, target) if constants else None
    return (func if packing is None else emit(packing.kernel, dict(func.attrs))), taken

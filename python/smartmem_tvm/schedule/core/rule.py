# SPDX-License-Identifier: Apache-2.0
"""The interface of a schedule rule: one per kernel family and target, as in dlight (None means that it declines)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, TypeVar

from tvm import IRModule, s_tir, tirx
from tvm.target import Target

from ...ir.exchange_constants import Exchange, constant_operands, exchange
from ...ir.kernel import Kernel, Opaque, Stage, parse
from ...ir.walk import stores
from .decisions import declined
from .nest import index_type

SCHEDULED = "tirx.is_scheduled"
RULE = "smartmem.rule"
"""Attribute of a scheduled kernel: ``name``, ``family`` and ``catch_all`` of the rule that made its schedule."""


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class FinishedSchedule:
    """A finished schedule: the part of an `s_tir.Schedule` that is read, without its state.

    TVM takes as long to build that state, which only further changes need, as to schedule a short kernel.
    """

    mod: IRModule

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> FinishedSchedule:
        """Return the schedule of one function."""
        return cls(IRModule({"main": func}))


class Rule(ABC):
    """A schedule for one family of kernels on one kind of target.

    Attributes
    ----------
    catch_all : bool
        The rule takes the kernels that no other rule takes, and is not fast.
    """

    catch_all = False

    @property
    def name(self) -> str:
        """The name of the rule in tables."""
        return type(self).__name__

    @property
    def family(self) -> str:
        """The kernels that the rule is for, in words: the first line of the class's docstring."""
        line = (type(self).__doc__ or "").strip().partition("\n")[0]
        return line.removeprefix("The rule for ").rstrip(".")

    @property
    def record(self) -> dict:
        """The value of the attribute `RULE` of the kernels that it schedules."""
        return {"name": self.name, "family": self.family, "catch_all": self.catch_all}

    def runs_on(self, target: Target) -> bool:
        """Whether the rule is for targets of this kind."""
        return True

    @abstractmethod
    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | FinishedSchedule | None:
        """Schedule `func` (unscheduled S-TIR) for `target`, or return None if this rule does not take it."""


class NestRule(Rule):
    """A rule written as a plan of the functional form of a kernel, and a loop nest made of the plan.

    Parameters
    ----------
    params : optional
        Tile sizes and thresholds; by default those of the target.

    Attributes
    ----------
    needs : str
        The targets that the rule is for, in words.
    """

    needs: ClassVar[str] = "another kind of target"

    def __init__(self, params=None):
        self.params = params

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | FinishedSchedule | None:
        """Schedule `func`, or return None if the target is of another kind or the kernel of another family."""
        body = self.ask(func, target, self.lower)
        return None if body is None else FinishedSchedule.of(finished(func, parse(func), body))

    def ask(self, func: tirx.PrimFunc, target: Target, question: Callable[[Kernel, object], Answer]) -> Answer | None:
        """Return ``question(prepared kernel, parameters)``.

        Parameters
        ----------
        func : PrimFunc
            Unscheduled.

        Returns
        -------
        object
            The answer; None if the target is of another kind or the kernel of another family.
        """
        if not self.runs_on(target):
            return declined(f"it needs {self.needs}")
        try:
            kernel = parse(func)
        except Opaque as reason:
            return declined(str(reason))
        return self.ask_kernel(kernel, partial(self.params_for, func, target), question)

    def ask_kernel(
        self, kernel: Kernel, params: Callable, question: Callable[[Kernel, object], Answer], prepared: bool = False
    ) -> Answer | None:
        """Return the same for a `Kernel`, which may be a run of stages of another one.

        Parameters
        ----------
        params : callable
            Returns the parameters.
        prepared : bool
            `kernel` is already as `prepare` returns it.
        """
        types = {dtype for stage in kernel.stages for dtype in _index_types(stage)}
        if len(types) > 1:
            return declined(f"its indices are of several types: {', '.join(sorted(types))}")
        with index_type(next(iter(types), "int64")):
            ready = kernel if prepared else self.prepare(kernel)
            return None if ready is None else question(ready, params())

    def nest(self, kernel: Kernel, target: Target, prepared: bool = False) -> tirx.Stmt | None:
        """Return the loop nest of a kernel, or None if it is of another family."""
        return self.ask_kernel(kernel, lambda: self.params or self.params_of(target), self.lower, prepared)

    def planned(self, func: tirx.PrimFunc, target: Target):
        """Return the result of `plan` for a function; no loop nest is emitted."""
        return self.ask(func, target, self.plan)

    def lower(self, kernel: Kernel, params) -> tirx.Stmt | None:
        """Return the loop nest of a prepared kernel, or None."""
        plan = self.plan(kernel, params)
        return None if plan is None else self.emit(plan)

    def params_for(self, func: tirx.PrimFunc, target: Target):
        """Return the parameters for a kernel; a rule may override this to read the kernel's attributes."""
        return self.params or self.params_of(target)

    @abstractmethod
    def params_of(self, target: Target):
        """Return the parameters of a target."""

    @abstractmethod
    def prepare(self, kernel: Kernel) -> Kernel | None:
        """Return the kernel as `plan` expects it, with element-wise stages folded; None if it is of another family."""

    @abstractmethod
    def plan(self, kernel: Kernel, params) -> object | None:
        """Return a plan of a prepared kernel, or None with a reason (`decisions.declined`) if the rule declines.

        The plan is private to the rule: only `emit` reads it. A rule that has a model of time notes the price of the
        plan (`decisions.priced`).
        """

    @abstractmethod
    def emit(self, plan) -> tirx.Stmt | None:
        """Return the loop nest of a plan; None if it cannot be emitted after all."""


@lru_cache(maxsize=4096)  # each rule calls it for all stages
def _index_types(stage: Stage) -> frozenset[str]:
    return frozenset(str(it.var.ty.dtype) for it in stage.iters)


def finished(func: tirx.PrimFunc, kernel: Kernel, body: tirx.Stmt, buffers: Sequence = ()) -> tirx.PrimFunc:
    """Return `func` with `body` under its root block.

    The root block allocates the intermediates of the kernel that `body` still writes, and `buffers`.
    """
    used = [store.buffer for store in stores(body)]
    between = [b for b in kernel.intermediates if any(b.same_as(u) for u in used)]
    between += [b for b in buffers if not any(b.same_as(each) for each in between)]
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=between)
    return func.with_body(s_tir.SBlockRealize([], True, root)).with_attr("tirx.noalias", True)


def is_open(func: tirx.PrimFunc) -> bool:
    """Whether a kernel is not scheduled yet."""
    return isinstance(func.body, s_tir.SBlockRealize) and not int((func.attrs or {}).get(SCHEDULED, 0))


def known_target(func: tirx.PrimFunc) -> Target | None:
    """Return the target of a kernel, else the current one, else None."""
    return (func.attrs or {}).get("target") or Target.current(allow_none=True)


def target_of(func: tirx.PrimFunc, name: str) -> Target:
    """Return the target of a kernel, else the current one; raise ValueError if there is neither."""
    target = known_target(func)
    if target is None:
        raise ValueError(
            f"ScheduleKernels: kernel {name} has no target; run the pass under `with target:` or after BindTarget."
        )
    return target


def exchange_open(
    mod: IRModule, changed: Callable[[tirx.PrimFunc, Collection[int], Target], Exchange | None]
) -> IRModule:
    """Replace kernels that are not scheduled yet and have constants.

    Parameters
    ----------
    changed : callable
        ``(kernel, positions of its constants, target) -> replacement``; None if the kernel stays.
    """
    found = {
        gvar: changed(mod[gvar], positions, target_of(mod[gvar], gvar.name_hint))
        for gvar, positions in constant_operands(mod).items()
        if is_open(mod[gvar])
    }
    return exchange(mod, {gvar: each for gvar, each in found.items() if each is not None})


def record_on(func: tirx.PrimFunc) -> dict | None:
    """Return the attribute of a kernel that names the rule that scheduled it, or None."""
    noted = (func.attrs or {}).get(RULE)
    kinds = (("name", str), ("family", str), ("catch_all", bool))
    return None if noted is None else {key: kind(noted[key]) for key, kind in kinds}


def record_of(rule: Rule, schedule: s_tir.Schedule | FinishedSchedule) -> dict:
    """Return the record on the scheduled kernel, which may name several rules, or else that of `rule`."""
    return record_on(schedule.mod["main"]) or rule.record

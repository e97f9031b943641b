# SPDX-License-Identifier: Apache-2.0
"""The answer of a rule about a kernel: its plan with decisions and prices, or the reason why it declines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tvm import tirx

if TYPE_CHECKING:
    from .decisions import Decision

PLAN = "smartmem.plan"
"""Attribute of a scheduled kernel: its `Choice` as JSON; `without_plans` takes it off before code is generated."""


@dataclass(frozen=True)
class Price:
    """The time that a rule's model predicts for a plan.

    Attributes
    ----------
    cycles : float
        Of a core, or of a processor of a GPU.
    terms : mapping of str to float
        Cycles of each part of the work.
    how : str
        How the terms make up the price: ``sum``, or a sentence where some of them overlap.
    shared : int
        The number of cores among which `cycles` are divided, if they count all work; 1 if they are those of the core
        that finishes last.
    """

    cycles: float
    terms: Mapping[str, float] = field(default_factory=dict)
    how: str = "sum"
    shared: int = 1

    def as_dict(self) -> dict:
        """Return plain data for JSON, rounded to hundredths of a cycle."""
        terms = {name: round(value, 2) for name, value in self.terms.items()}
        return {"cycles": round(self.cycles, 2), "shared": self.shared, "terms": terms, "how": self.how}


@dataclass(frozen=True)
class Plan:
    """The answer of one rule about one kernel.

    Attributes
    ----------
    rule, family : str
        The rule, and the kernels that it is for, in words. For a kernel that is cut into runs, those of the runs.
    catch_all : bool
        The rule takes the kernels that no other rule takes.
    decisions : sequence of Decision
        The decisions, with the facts that they depend on.
    models : sequence of callable
        One for each run of the kernel whose rule has a model of time; each returns a `Price` or None.
    notes : mapping
        Chosen values that no tuner varies: kind -> values by the names of fields.
    reason : str
        Why the rule does not take the kernel; empty if it does.
    raised : bool
        The rule is for such kernels but raised a ScheduleError, which is the `reason`.
    func : PrimFunc or None
        The scheduled kernel.
    """

    rule: str
    family: str
    catch_all: bool = False
    decisions: Sequence[Decision] = ()
    models: Sequence[Callable[[], Price | None]] = field(default=(), compare=False, repr=False)
    notes: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    reason: str = ""
    raised: bool = False
    func: tirx.PrimFunc | None = field(default=None, compare=False, repr=False)

    @property
    def record(self) -> dict:
        """The attribute of the kernel that names its rule (`core.rule.RULE`)."""
        return {"name": self.rule, "family": self.family, "catch_all": self.catch_all}

    @property
    def prices(self) -> list[Price]:
        """The predictions of the models of its rules."""
        return [price for price in (model() for model in self.models) if price is not None]

    def as_dict(self) -> dict:
        """Return plain data for JSON."""
        if self.reason:
            return {"rule": self.rule, "reason": self.reason}
        decided = {each.name: {key: int(value) for key, value in each.values.items()} for each in self.decisions}
        facts = {each.name: {key: int(value) for key, value in each.facts.items()} for each in self.decisions}
        known = {"rule": self.rule, "family": self.family, "catch_all": self.catch_all, "decisions": decided}
        notes = {name: dict(each) for name, each in self.notes.items()}
        return {**known, "facts": facts, "notes": notes, "prices": [each.as_dict() for each in self.prices]}


@dataclass(frozen=True)
class Choice:
    """The plan that was chosen for a kernel, and the answers of the rules that were asked before.

    Attributes
    ----------
    plan : Plan or None
        None if no rule takes the kernel.
    rejected : sequence of Plan
        In the order in which their rules were asked, each with its reason.
    """

    plan: Plan | None
    rejected: Sequence[Plan] = ()

    def as_json(self) -> str:
        """Return the value of the attribute `PLAN`; it is equal for equal kernels."""
        chosen = None if self.plan is None else self.plan.as_dict()
        return json.dumps({"chosen": chosen, "rejected": [each.as_dict() for each in self.rejected]})


def plan_on(func: tirx.PrimFunc) -> dict | None:
    """Return the choice in a scheduled kernel's attribute, as `Choice.as_json` wrote it; None if there is none."""
    kept = (func.attrs or {}).get(PLAN)
    return None if kept is None else json.loads(str(kept))

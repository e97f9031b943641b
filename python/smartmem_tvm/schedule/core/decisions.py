# SPDX-License-Identifier: Apache-2.0
"""Decisions of rules, which a tuner or its records can replace; no other way leads from a record into a schedule.

A rule chooses how to run a kernel by a model, and holds the choice as a frozen dataclass of numbers. It passes the
choice to `decide`, with the facts that it depends on. `decide` returns the choice with the values that the PrimFunc
gives in its attribute ``smartmem.decisions``, by the names of decisions and fields::

    {"gpu_matmul.rows": 64, "gpu_matmul.columns": 32, "gpu_matmul.thread_rows": 4, ...}

The second decision of a kind in a kernel is ``gpu_matmul#1``; fields within fields are named with dots. The value
``rule`` gives the rule itself (`rivals`). Values for kinds of decisions that this rule does not take then belong to its
rivals, and are ignored.

An `Account` also holds the other answers of a rule: the price of its plan (`priced`), or the reason why it does not
take the kernel (`declined`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import TypeVar

from tvm import tirx
from tvm.s_tir.schedule import ScheduleError

from ...ir.kernel import DECISIONS
from .plans import Price
from .rivals import NUMBERED

RULE_GENE = "rule"
Chosen = TypeVar("Chosen")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Decision:
    """One decision that was taken.

    Attributes
    ----------
    name : str
        The kind, and ``#`` and a number from the second decision of the kind on.
    kind : str
    facts : mapping of str to int
        Extents and properties of the target.
    values : mapping of str to int or bool
        The chosen values, by the names of fields.
    allows : callable or None
        Whether the rule can follow other values of these fields.
    """

    name: str
    kind: str
    facts: Mapping[str, int]
    values: Mapping[str, int | bool]
    allows: Callable[[Mapping[str, int | bool]], bool] | None = field(default=None, compare=False, repr=False)


@dataclass
class Account:
    """Answers of a rule about the current kernel.

    Attributes
    ----------
    given : mapping
        Values in the kernel's attribute.
    taken : list of Decision
    prices : list of callable
        Each returns the `Price` of a plan, by the model of its rule.
    notes : dict
        Kind -> chosen values that no tuner varies, by the names of fields.
    reason : str
        Why the last rule to decline does not take the kernel.
    """

    given: Mapping[str, int | bool]
    taken: list[Decision] = field(default_factory=list)
    prices: list[Callable[[], Price]] = field(default_factory=list)
    notes: dict[str, dict[str, int | str]] = field(default_factory=dict)
    reason: str = ""


_ACCOUNT: ContextVar[Account | None] = ContextVar("decisions of the kernel at hand", default=None)


@contextmanager
def asking(func: tirx.PrimFunc) -> Iterator[Account]:
    """Use the values that `func` gives within the context, and note the answers of rules on the account."""
    account = Account(_given(func))
    token = _ACCOUNT.set(account)
    try:
        yield account
    finally:
        _ACCOUNT.reset(token)


@contextmanager
def deciding(func: tirx.PrimFunc) -> Iterator[list[Decision]]:
    """Use the values that `func` gives within the context, and fill the list with the decisions taken."""
    with asking(func) as account:
        yield account.taken


def declined(reason: str) -> None:
    """Note why the current rule does not take the current kernel, and return None, which the rule returns too."""
    account = _ACCOUNT.get()
    if account is not None:
        account.reason = reason


def last_reason() -> str:
    """Return the last reason why a rule does not take the current kernel; empty if there is none."""
    account = _ACCOUNT.get()
    return account.reason if account is not None else ""


def noted(kind: str, **values: int | str) -> None:
    """Note values that a rule has chosen and that no tuner varies."""
    account = _ACCOUNT.get()
    if account is not None:
        account.notes[kind] = {name: v if isinstance(v, str) else int(v) for name, v in values.items()}


def priced(price: Callable[[], Price]) -> None:
    """Note the price of the current rule's plan; `price` is called only where the plan is kept."""
    account = _ACCOUNT.get()
    if account is not None:
        account.prices.append(partial(copy_context().run, price))  # with the index type of the current kernel


def _given(func: tirx.PrimFunc) -> dict[str, int | bool]:
    return {str(name): value for name, value in ((func.attrs or {}).get(DECISIONS) or {}).items()}


def given_rule(func: tirx.PrimFunc | None = None) -> str | None:
    """Return the rule that `func`, or by default the current kernel, gives for itself; None if it gives none."""
    account = _ACCOUNT.get()
    given = _given(func) if func is not None else account.given if account is not None else {}
    return NUMBERED[int(given[RULE_GENE])] if RULE_GENE in given else None


def given_value(kind: str, field: str) -> int | bool | None:
    """Return the value that the current kernel gives for a field of its next decision of a kind; None without one."""
    account = _ACCOUNT.get()
    return account.given.get(f"{_name(kind, account)}.{field}") if account is not None else None


def _name(kind: str, account: Account) -> str:
    number = sum(each.kind == kind for each in account.taken)
    return f"{kind}#{number}" if number else kind


def decide(kind: str, choice: Chosen, fits: Callable[[Chosen], bool] | None = None, **facts: int) -> Chosen:
    """Return `choice`, a frozen dataclass, with the values that the kernel gives in place of its own.

    Parameters
    ----------
    kind : str
        The kind of decision; `tune.decision_space` lists the values of each kind.
    fits : callable, optional
        Whether the rule can follow another choice.
    facts : int
        Sizes that the choice depends on.

    Raises
    ------
    ScheduleError
        If the rule cannot follow the given values.
    """
    account = _ACCOUNT.get()
    if account is None:
        return choice
    name = _name(kind, account)
    decided = _with_values(choice, account.given, name)
    if fits is not None and decided != choice and not fits(decided):
        raise ScheduleError(f"{name}: {decided} does not fit.")

    def allows(values: Mapping[str, int | bool]) -> bool:
        other = _with_values(choice, {f"{name}.{field}": value for field, value in values.items()}, name)
        return other == choice or fits(other)

    able = allows if fits is not None else None
    account.taken.append(Decision(name, kind, facts, dict(_values(decided, "")), able))
    return decided


def attempt(make: Callable[[], Answer | None]) -> Answer | None:
    """Return the result of `make`.

    If that is None or `make` raises, the decisions, prices and notes of the kernel are again those of before.
    """
    account = _ACCOUNT.get()
    if account is None:
        return make()
    taken, prices, notes = len(account.taken), len(account.prices), dict(account.notes)
    result = None
    try:
        result = make()
    finally:
        if result is None:
            del account.taken[taken:]
            del account.prices[prices:]
            account.notes = notes
    return result


def check_all_asked(func: tirx.PrimFunc, taken: list[Decision]) -> None:
    """Refuse values that belong to another kernel.

    Raises
    ------
    ScheduleError
        If `func` gives values for decisions that were not taken.
    """
    known = {f"{each.name}.{name}" for each in taken for name in each.values}
    given = set(_given(func)) - {RULE_GENE}
    if given_rule(func) is not None:
        given = {name for name in given if any(name.startswith(f"{each.name}.") for each in taken)}
    unknown = sorted(given - known)
    if unknown:
        raise ScheduleError(f"nothing asks for {', '.join(unknown)}: the decisions are those of another kernel.")


def in_force(func: tirx.PrimFunc, taken: list[Decision]) -> dict[str, int | bool]:
    """Return the given values that were used, without those for rivals of the rule that took the decisions."""
    known = {f"{each.name}.{name}" for each in taken for name in each.values} | {RULE_GENE}
    return {name: value for name, value in _given(func).items() if name in known}


def given_values(taken: list[Decision]) -> dict[str, int | bool]:
    """Return the attribute that gives the values of these decisions."""
    return {f"{each.name}.{name}": value for each in taken for name, value in each.values.items()}


def _with_values(choice, given: Mapping, prefix: str):
    """Return `choice` with the given values whose names begin with `prefix`."""
    if is_dataclass(choice):
        parts = {each.name: getattr(choice, each.name) for each in fields(choice)}
        return replace(choice, **{n: _with_values(part, given, f"{prefix}.{n}") for n, part in parts.items()})
    if isinstance(choice, tuple):
        return tuple(_with_values(part, given, f"{prefix}.{n}") for n, part in enumerate(choice))
    return type(choice)(given.get(prefix, choice))


def _values(choice, prefix: str) -> Iterator[tuple[str, int | bool]]:
    if is_dataclass(choice):
        parts = [(each.name, getattr(choice, each.name)) for each in fields(choice)]
    elif isinstance(choice, tuple):
        parts = [(str(n), part) for n, part in enumerate(choice)]
    else:
        yield prefix, choice
        return
    for name, part in parts:
        yield from _values(part, f"{prefix}.{name}" if prefix else name)

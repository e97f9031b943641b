# SPDX-License-Identifier: Apache-2.0
"""What a rule decides by a model may be given instead: the one way from a tuner, or its records, into the schedules.

Where a rule has chosen how to run a kernel, as a frozen dataclass of numbers, it asks `decide`, with the facts that the
choice depends on. Without given values the answer is the choice itself. A PrimFunc gives values in its attribute
``smartmem.decisions``, by the names of decisions and fields::

    {"gpu_matmul.rows": 64, "gpu_matmul.columns": 32, "gpu_matmul.thread_rows": 4, ...}

The second decision of a kind in a kernel is ``gpu_matmul#1``; fields within fields are named with dots. ``rule`` gives
the rule itself (`rivals`); decisions of other kinds than this one takes are then those of its rivals, and do not count.

The same account holds what a rule says of a kernel besides: the price of what it decided (`priced`), or why the kernel
is not its business (`declined`).
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
Choice = TypeVar("Choice")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Decision:
    """One decision that was taken.

    Attributes
    ----------
    name : str
        Its kind, and its number among those of the kind unless it is the first.
    kind : str
    facts : mapping of str to int
        Extents, and what is known of the target.
    values : mapping of str to int or bool
        What was chosen, by the names of fields.
    allows : callable or None
        Whether the rule can do with other such values.
    """

    name: str
    kind: str
    facts: Mapping[str, int]
    values: Mapping[str, int | bool]
    allows: Callable[[Mapping[str, int | bool]], bool] | None = field(default=None, compare=False, repr=False)


@dataclass
class Account:
    """What a rule says of the kernel at hand while it is asked.

    Attributes
    ----------
    given : mapping
        Values that the kernel brings along.
    taken : list of Decision
    prices : list of callable
        Make a `Price` each of what was decided, by the models of the rules that have one.
    notes : dict
        Kind -> what was chosen that no tuner varies, by the names of fields.
    reason : str
        Why the rule that was asked last does not take the kernel.
    """

    given: Mapping[str, int | bool]
    taken: list[Decision] = field(default_factory=list)
    prices: list[Callable[[], Price]] = field(default_factory=list)
    notes: dict[str, dict[str, int]] = field(default_factory=dict)
    reason: str = ""


_LEDGER: ContextVar[Account | None] = ContextVar("decisions of the kernel at hand", default=None)


@contextmanager
def asking(func: tirx.PrimFunc) -> Iterator[Account]:
    """Within the context, the values that `func` gives count, and what rules say is noted on the account."""
    account = Account(_given(func))
    token = _LEDGER.set(account)
    try:
        yield account
    finally:
        _LEDGER.reset(token)


@contextmanager
def deciding(func: tirx.PrimFunc) -> Iterator[list[Decision]]:
    """Within the context, the values that `func` gives count; the list is filled with the decisions taken."""
    with asking(func) as account:
        yield account.taken


def declined(reason: str) -> None:
    """Say why the kernel at hand is not the business of the rule that is asked; None, which the rule returns then."""
    account = _LEDGER.get()
    if account is not None:
        account.reason = reason


def last_reason() -> str:
    """What was said last of why the kernel at hand is not some rule's business."""
    account = _LEDGER.get()
    return account.reason if account is not None else ""


def noted(kind: str, **values: int) -> None:
    """Say what a rule has chosen that no tuner varies."""
    account = _LEDGER.get()
    if account is not None:
        account.notes[kind] = {name: int(value) for name, value in values.items()}


def priced(price: Callable[[], Price]) -> None:
    """Say what the plan of the rule at hand would take; it is worked out only where the plan is kept."""
    account = _LEDGER.get()
    if account is not None:
        account.prices.append(partial(copy_context().run, price))  # with the index type of the kernel at hand


def _given(func: tirx.PrimFunc) -> dict[str, int | bool]:
    return {str(name): value for name, value in ((func.attrs or {}).get(DECISIONS) or {}).items()}


def given_rule(func: tirx.PrimFunc | None = None) -> str | None:
    """The rule that `func`, or the kernel at hand, is to be scheduled by; None if that is left open."""
    ledger = _LEDGER.get()
    given = _given(func) if func is not None else ledger.given if ledger is not None else {}
    return NUMBERED[int(given[RULE_GENE])] if RULE_GENE in given else None


def given_value(kind: str, field: str) -> int | bool | None:
    """What the kernel at hand gives for a field of its next decision of a kind; None if that is left open."""
    ledger = _LEDGER.get()
    return ledger.given.get(f"{_name(kind, ledger)}.{field}") if ledger is not None else None


def _name(kind: str, ledger: Account) -> str:
    number = sum(each.kind == kind for each in ledger.taken)
    return f"{kind}#{number}" if number else kind


def decide(kind: str, choice: Choice, fits: Callable[[Choice], bool] | None = None, **facts: int) -> Choice:
    """`choice`, a frozen dataclass, with the values given for it in place of its own.

    Parameters
    ----------
    kind : str
        What is decided; `tune.space` knows which values each kind may have.
    fits : callable, optional
        Whether the rule can do with another choice.
    facts : int
        Sizes that the choice depends on.

    Raises
    ------
    ScheduleError
        If the rule cannot do with what is given.
    """
    ledger = _LEDGER.get()
    if ledger is None:
        return choice
    name = _name(kind, ledger)
    decided = _with_values(choice, ledger.given, name)
    if fits is not None and decided != choice and not fits(decided):
        raise ScheduleError(f"{name}: {decided} does not fit.")

    def allows(values: Mapping[str, int | bool]) -> bool:
        other = _with_values(choice, {f"{name}.{field}": value for field, value in values.items()}, name)
        return other == choice or fits(other)

    able = allows if fits is not None else None
    ledger.taken.append(Decision(name, kind, facts, dict(_values(decided, "")), able))
    return decided


def attempt(make: Callable[[], Answer | None]) -> Answer | None:
    """What `make` returns; if that is None, or it fails with a ScheduleError, its decisions and prices do not count."""
    ledger = _LEDGER.get()
    taken, prices = (len(ledger.taken), len(ledger.prices)) if ledger is not None else (0, 0)
    result = None
    try:
        result = make()
    finally:
        if result is None and ledger is not None:
            del ledger.taken[taken:]
            del ledger.prices[prices:]
    return result


def check_all_asked(func: tirx.PrimFunc, taken: list[Decision]) -> None:
    """Refuse values that are for another kernel.

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
    """The given values without those for rivals of the rule that has taken decisions."""
    known = {f"{each.name}.{name}" for each in taken for name in each.values} | {RULE_GENE}
    return {name: value for name, value in _given(func).items() if name in known}


def given_values(taken: list[Decision]) -> dict[str, int | bool]:
    """The attribute that gives exactly what was decided."""
    return {f"{each.name}.{name}": value for each in taken for name, value in each.values.items()}


def _with_values(choice, given: Mapping, prefix: str):
    """`choice` with the values whose names begin with `prefix`."""
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

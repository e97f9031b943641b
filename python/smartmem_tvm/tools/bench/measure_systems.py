# SPDX-License-Identifier: Apache-2.0
"""Measure several systems on one model: start them, feed the same arrays, time them in turns, compare outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .child import Child, System
from .throughput import RequestEffort
from .turns import RunEffort

if TYPE_CHECKING:
    import numpy as np

Outputs = list["np.ndarray"]


@dataclass(frozen=True)
class Method:
    """Settings of a measurement.

    Attributes
    ----------
    prepare : callable
        ``prepare(request) -> System``, called in the child.
    error : callable
        ``error(outputs, reference outputs) -> float``.
    reference : str
        The system whose outputs are the reference.
    effort : RunEffort or RequestEffort
        The kind and amount of timing: single runs, or several requests at once.
    together : bool
        Whether all systems run at once, in turns; otherwise one after the other, which needs less memory.
    patience : float
        Seconds to wait for one answer of a system.
    side_by_side : bool
        Whether all systems are prepared at once, and do their first runs at once: faster if the time to compile is not
        measured. Otherwise the first is prepared alone, and first runs are done one by one.
    """

    prepare: Callable[[dict], System]
    error: Callable[[Outputs, Outputs], float]
    reference: str
    effort: RunEffort | RequestEffort = field(default_factory=RunEffort)
    together: bool = True
    patience: float = 3600.0
    side_by_side: bool = False


class Processes:
    """The processes of systems: one that has compiled a model for a range of sizes stays for the next of them."""

    def __init__(self):
        self._kept: dict[str, tuple[dict, Child]] = {}

    def child(self, method: Method, request: dict) -> Child:
        """Return a process which prepares what a request asks for, or has prepared it and gets another size."""
        name, common = request["system"], _of_all_sizes(request)
        if common is None:
            return Child(method.prepare, request, method.patience)
        before, child = self._kept.pop(name, (None, None))
        if child is not None and (before != common or child.failure is not None):
            child.stop()
            child = None
        if child is not None:
            child.ask("at", request)
        child = child or Child(method.prepare, request, method.patience)
        self._kept[name] = common, child
        return child

    def done(self, child: Child) -> None:
        """Stop a process that no other size needs."""
        if child not in [each for _, each in self._kept.values()]:
            child.stop()

    def only(self, requests: Sequence[dict]) -> None:
        """Stop those that none of these requests can use: they hold memory."""
        wanted = {request["system"]: _of_all_sizes(request) for request in requests}
        for name in [name for name, (common, _) in self._kept.items() if wanted.get(name) != common]:
            self._kept.pop(name)[1].stop()

    def close(self) -> None:
        """Stop all."""
        self.only(())


def _of_all_sizes(request: dict) -> dict | None:
    """Return a request without its size; None if its system is prepared for one size."""
    if "ranges" not in request:
        return None
    return {key: value for key, value in request.items() if key != "shapes"}


def measure(requests: Sequence[dict], method: Method, processes: Processes | None = None) -> dict[str, dict]:
    """Measure the systems of one model.

    Parameters
    ----------
    requests : sequence of dict
        One for each system, with its name under ``system``; the facts of the first hold the ``inputs`` for all.
        Requests with ``untimed`` run once. The system of one with ``ranges`` answers ``at`` with the facts of the size
        of another request.
    processes : Processes, optional
        Keeps the processes of such systems for the next call.

    Returns
    -------
    dict
        System -> its facts with ``latency_ms`` or ``throughput``, ``relative_error`` and ``peak_mb``, or ``error``, one
        sentence. If the first cannot be prepared, it is the only one.
    """
    processes = processes if processes is not None else Processes()
    processes.only(requests)
    run = _Run(method, processes)
    groups = [list(requests)] if method.together else [[request] for request in requests]
    for group in groups:
        if run.inputs is None and run.results:
            break  # without the first one's inputs the others cannot be measured
        run.measure(group)
    expected = run.outputs.get(method.reference)
    for name, outputs in run.outputs.items():
        if expected is not None and name != method.reference:
            run.results[name]["relative_error"] = method.error(outputs, expected)
    names = [request["system"] for request in requests[: None if run.inputs is not None else 1]]
    return {name: run.results[name] for name in names if name in run.results}


@dataclass
class _Run:
    """The state of the measurement of one model."""

    method: Method
    processes: Processes
    results: dict[str, dict] = field(default_factory=dict)
    outputs: dict[str, Outputs] = field(default_factory=dict)
    inputs: dict | None = None

    def measure(self, requests: Sequence[dict]) -> None:
        """Measure systems whose processes run at the same time."""
        with contextlib.ExitStack() as stack:
            # The passes of the first are timed, so it is prepared alone. The others are prepared in parallel.
            alone = 1 if self.inputs is None and not self.method.side_by_side else 0
            children = self._prepare(requests[:alone], stack)
            if self.inputs is not None or not alone:
                children += self._prepare(requests[alone:], stack)
            if self.inputs is not None:
                untimed = {request["system"] for request in requests if request.get("untimed")}
                self._time(children, untimed)
            for child in children:
                if child.failure is not None:
                    self.results[child.name] = {"error": child.failure}
                    self.outputs.pop(child.name, None)

    def _prepare(self, requests: Sequence[dict], stack: contextlib.ExitStack) -> list[Child]:
        """Start systems and wait for their facts."""
        children = [self.processes.child(self.method, request) for request in requests]
        for child in children:
            stack.callback(self.processes.done, child)
        for child in children:
            facts = child.answer() or {}
            self.inputs = facts.pop("inputs", None) or self.inputs
            self.results[child.name] = facts
        return children

    def _time(self, children: Sequence[Child], untimed: Collection[str]) -> None:
        self._feed(children)
        for child in children:
            if child.name in untimed:
                child.stop()
        able = [child for child in children if child.failure is None and child.name not in untimed]
        # A system that fails midway is not timed any more.
        for child, measured in zip(able, self.method.effort.measure(able)):
            last = child.call("finish")
            if last is not None:
                facts = self.results[child.name]
                facts["peak_mb"].update(last.pop("peak_mb"))
                facts.update(last, **measured)

    def _feed(self, children: Sequence[Child]) -> None:
        for group in [children] if self.method.side_by_side else [[child] for child in children]:
            for child in group:
                child.ask("feed", self.inputs)
            for child in group:
                self.outputs[child.name] = child.answer()

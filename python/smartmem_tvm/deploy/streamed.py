# SPDX-License-Identifier: Apache-2.0
"""A model under a memory budget: weights stream from a file into an arena while the kernels run (FlexNN)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm import relax

from ..errors import UserError
from ..memory_size import memory_bytes
from ..planner.preload import OverBudget, PreloadPlan, Problem, Tensor, Use, least_budget, plan_preload
from .manifest import PLAN
from .stream_library import functions
from .weights import Machine

ALIGNMENT = 64  # bytes, of tensors in the arena
# Speeds that a plan assumes until an inference has measured them.
_FLOPS, _BANDWIDTH = 2e10, 2e9  # operations per second, bytes per second
_PIECE, _PIECES = 2**22, 4  # bytes and number of the reads that measure the file's speed
_SEARCHED = 0.3  # seconds
# A plan without a time limit is always the same. A compilation needs that of each size twice: to show, and to write it.
_plan_once = lru_cache(maxsize=64)(plan_preload)
_PATIENCE = 60_000  # milliseconds without a byte from the file, after which an inference gives up


class BudgetTooSmall(UserError):
    """No plan fits into the memory budget with the present slices of weights.

    Attributes
    ----------
    least : int
        The least budget, in bytes, that has a plan.
    """

    def __init__(self, message: str, least: int):
        super().__init__(message)
        self.least = least


def problem_of(description: Mapping, seconds: Sequence[float] = ()) -> Problem:
    """Return the planning problem of a model.

    Parameters
    ----------
    description : mapping
        The description of a function that `transform.memory.stream_weights` wrote.
    seconds : sequence of float, optional
        Measured seconds of each step; estimated if not given.
    """
    steps = description["steps"]
    uses = (
        Use(each["weight"], each["bytes"], each["step"], steps[each["step"]]["kernel"]) for each in description["uses"]
    )
    tensors = (Tensor(each["bytes"], each["first"], each["last"]) for each in description["tensors"])
    taken = tuple(seconds) or tuple(each["flops"] / _FLOPS for each in steps)
    return Problem(len(steps), tuple(tensors), tuple(uses), taken, ALIGNMENT)


def everything(problem: Problem) -> int:
    """Return the budget in bytes that holds all tensors and weights side by side; no plan needs more."""
    weights = {use.weight: use.bytes for use in problem.uses}
    sizes = [*weights.values(), *(tensor.bytes for tensor in problem.tensors)]
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes) + ALIGNMENT


def planned(
    description: Mapping,
    problem: Problem,
    budget: int,
    bandwidth: float = _BANDWIDTH,
    time_limit: float = _SEARCHED,
) -> PreloadPlan:
    """Return the plan within a budget.

    Parameters
    ----------
    description, problem
        Description and problem of one model, see `problem_of`.
    bandwidth : float
        Bytes per second read from the file.
    time_limit : float
        Seconds for the search of a better plan; with 0, the plan is always the same.

    Raises
    ------
    BudgetTooSmall
        If there is no plan; the message names the layer and the least budget.
    """
    try:
        return (plan_preload if time_limit else _plan_once)(problem, budget, bandwidth, time_limit=time_limit)
    except OverBudget as why:
        least, kernel = least_budget(problem), description["steps"][why.step]["kernel"]
        raise BudgetTooSmall(
            f"A memory budget of {budget / 1e6:.4g} MB is too small for this model: step {why.step} ({kernel}) needs "
            f"{why.needed / 1e6:.4g} MB, and the least that it runs within is {-(-least // 10_000) / 100:.2f} MB.",
            least,
        ) from why


def streamed_memory(description: Mapping) -> dict:
    """Return the plan within the compiled budget of a model, in the form of `deploy.memory_plan.memory_plan`."""
    problem = problem_of(description)
    plan = planned(description, problem, description["budget"], time_limit=0.0)
    tensors = [
        {"offset": offset, "kind": "workspace" if each.first == each.last else "activation", "bytes": each.bytes}
        | {"first": each.first, "last": each.last}
        for each, offset in zip(problem.tensors, plan.offsets, strict=True)
    ]
    for use, load in zip(problem.uses, plan.loads, strict=True):
        whole = {"first": 0, "last": problem.steps - 1}
        while_read = {"first": load.after + 1, "last": use.step}
        tensors.append(
            {"offset": load.offset, "kind": "weight", "bytes": use.bytes, **(whole if load.pinned else while_read)}
        )
    tensors = [{"storage": 0, **each, "shape": [each["bytes"]], "dtype": "uint8"} for each in tensors]
    tensors.sort(key=lambda each: (each["first"], each["last"]))
    steps = [each["kernel"] for each in description["steps"]]
    return {"steps": steps, "storages": [{"bytes": plan.bytes, "scope": "global"}], "tensors": tensors}


def _loads(problem: Problem, plan: PreloadPlan, places: Sequence[Mapping]) -> tuple[list[int], list[str]]:
    """Return a plan as the stream takes it: six numbers for each load, and the names of the layers."""
    found: list[int] = []
    for use, load in zip(problem.uses, plan.loads, strict=True):
        offset = places[use.weight]["offset"]
        found += [offset, use.bytes, load.offset, load.after, use.step, int(load.pinned)]
    return found, [use.name for use in problem.uses]


def write_plan(description: Mapping, weights: Path, places: Sequence[Mapping]) -> None:
    """Write the plan within the compiled budget of a model beside its weights, for programs without Python."""
    problem = problem_of(description)
    plan = planned(description, problem, description["budget"], time_limit=0.0)
    numbers, names = _loads(problem, plan, places)
    lines = [
        "smartmem stream 1",
        f"weights {weights.name} {weights.stat().st_size}",
        f"arena {plan.bytes} {_PATIENCE}",
        " ".join(map(str, ("offsets", len(plan.offsets), *plan.offsets))),
        f"loads {len(names)}",
        *(" ".join(map(str, (*numbers[6 * n : 6 * n + 6], name))) for n, name in enumerate(names)),
    ]
    weights.with_name(PLAN).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read_speed(file: Path) -> float:
    """Measure the speed of reading the file, in bytes per second, in some milliseconds; the page cache may serve it."""
    if not file.exists():
        return _BANDWIDTH
    piece, read = bytearray(_PIECE), 0
    with file.open("rb", buffering=0) as source:
        source.readinto(piece)  # touches the pages of the buffer before timing
        start = time.perf_counter()
        for _ in range(_PIECES):
            read += source.readinto(piece) or 0
        taken = time.perf_counter() - start
    return read / taken if read == _PIECE * _PIECES else _BANDWIDTH


class StreamedMachine(Machine):
    """A virtual machine on a CPU whose tensors and weights lie in one arena within a memory budget.

    Each function has a plan of its own. The arena is that of the function that ran last: another one's first inference
    loads its weights anew, also those that stay from one inference to the next.

    Parameters
    ----------
    code : tvm.relax.VMExecutable or tvm.runtime.Module
        Code that was compiled with a memory budget.
    file : Path
        The file of weights (`write_weights`).
    places : sequence of dict
        The place of each weight in the file.
    streams : mapping
        Function -> its description that `transform.memory.stream_weights` wrote.
    budget : int or str, optional
        See `set_memory_budget`; by default the one of the descriptions.
    check : callable, optional
        Raises a `UserError` if the file has changed since compilation; called before the file is opened again.
    owned : object
        An object that lives as long as the machine, such as a temporary folder.

    Raises
    ------
    UserError
        If the budget is too small, or the file is missing.
    """

    def __init__(
        self,
        code: relax.VMExecutable | tvm.runtime.Module,
        file: Path,
        places: Sequence[Mapping],
        streams: Mapping[str, Mapping],
        budget: int | str | None = None,
        check: Callable[[], None] = lambda: None,
        owned: object = None,
    ):
        self._call = functions()  # before the code is loaded, which looks these functions up
        super().__init__(code, functions=tuple(streams))
        self._file, self._places = file, tuple(places)
        self._streams, self._check, self._owned = streams, check, owned
        self._problems = {name: problem_of(each) for name, each in streams.items()}
        self._plans: dict[str, PreloadPlan] = {}
        self._present = next(iter(streams))
        self._bandwidth = _read_speed(file)
        self._bytes = file.stat().st_size if file.exists() else 0
        self._broken = False
        self._open()
        self.set_memory_budget(budget or streams[self._present]["budget"])

    @property
    def problem(self) -> Problem:
        """The planning problem of the function that ran last, with measured times of its steps."""
        return self._problems[self._present]

    @property
    def memory_plan(self) -> PreloadPlan:
        """The plan of the function that ran last: the place of each tensor and weight, and the time of each load."""
        return self._plans[self._present]

    @property
    def least_memory_budget(self) -> int:
        """The least budget in bytes that has a plan for each function, with the present slices."""
        return max(1, *map(least_budget, self._problems.values()))

    def set_memory_budget(self, budget: int | str | None) -> PreloadPlan:
        """Plan again within another budget, for all later inferences; this takes well under a second.

        Parameters
        ----------
        budget : int or str or None
            Bytes of the arena, or a text such as ``"60MB"``, for weights, intermediate tensors and workspaces. None
            means enough to keep everything.

        Returns
        -------
        PreloadPlan
            The plan of the function that ran last, `memory_plan`.

        Raises
        ------
        UserError
            If the budget is too small for a function; the previous plans stay.
        """
        self._look_back()
        plans, given = {}, None if budget is None else memory_bytes(budget)
        for name, problem in self._problems.items():
            size = everything(problem) if given is None else given
            plans[name] = planned(self._streams[name], problem, size, self._bandwidth)
        self._plans = plans
        self._follow(self._present)
        return self.memory_plan

    def timeline(self) -> dict[str, list]:
        """Return the times of the events of the last inference, in seconds since it began.

        Returns
        -------
        dict
            ``loads``: for each use of a weight, its ``name`` and ``step``, and begin and end of its load (``read``) and
            of the wait for it (``wait``), NaN if there was none; ``done``: the end of each step.
        """
        numbers = [float(each) for each in self._call.timeline(self._stream)]
        uses = self.problem.uses
        loads = [
            {
                "name": use.name,
                "step": use.step,
                "read": numbers[4 * n : 4 * n + 2],
                "wait": numbers[4 * n + 2 : 4 * n + 4],
            }
            for n, use in enumerate(uses)
        ]
        return {"loads": loads, "done": numbers[4 * len(uses) :]}

    def loaded_bytes(self) -> int:
        """Return the bytes read from the file since it was opened."""
        return int(self._call.loaded_bytes(self._stream))

    def close(self) -> None:
        """Stop reading and free the memory; the machine cannot run after this."""
        self._call.close(self._stream)

    def another(self) -> Machine:
        """Refuse a second machine, as it would need its own budget.

        Raises
        ------
        UserError
        """
        raise UserError(
            "A model with a memory budget has one arena, which one inference at a time runs in: compile it without "
            "a budget for several at once."
        )

    def __getitem__(self, name: str):
        function = super().__getitem__(name)
        return self._guarded(name, function) if name in self._streams else function

    def _guarded(self, name: str, function: Callable) -> Callable:
        def run(*inputs):
            if self._broken:
                self._check()
                self._open()
                self._follow(name)
            elif name != self._present:
                self._look_back()
                self._follow(name)
            try:
                return function(*inputs)
            except (RuntimeError, OSError, ValueError) as error:
                text = str(error).strip().splitlines()
                if not any(str(self._file) in line for line in text):
                    raise
                self._broken = True
                raise UserError(next(line for line in text if str(self._file) in line)) from error

        return run

    def _open(self) -> None:
        try:
            self._stream = self._call.open(str(self._file), self._bytes)
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(str(error).strip().splitlines()[-1]) from error
        self._weights, self._broken = (self._stream,), False

    def use_plan(self, plan: PreloadPlan) -> None:
        """Follow a plan of `problem` from the next inference on."""
        self._plans[self._present] = plan
        self._follow(self._present)

    def _follow(self, name: str) -> None:
        """Let the stream follow the plan of a function."""
        plan = self._plans[name]
        loads, names = _loads(self._problems[name], plan, self._places)
        self._call.plan(self._stream, plan.bytes, tvm_ffi.Shape(plan.offsets), tvm_ffi.Shape(loads), names, _PATIENCE)
        self._present = name

    def _look_back(self) -> None:
        """Use the measured times of the last inference, if there was one, in the planning problem."""
        if not self._plans or self._broken:
            return
        found = self.timeline()
        done = found["done"]
        if not done or any(each != each for each in done):
            return
        waited = [0.0] * len(done)
        for each in found["loads"]:
            begin, end = each["wait"]
            waited[each["step"]] += end - begin if begin == begin else 0.0
        seconds = [max(now - before - wait, 0.0) for before, now, wait in zip([0.0, *done], done, waited, strict=False)]
        self._problems[self._present] = problem_of(self._streams[self._present], seconds)
        reads = [(use.bytes, each["read"]) for use, each in zip(self.problem.uses, found["loads"], strict=True)]
        taken = [(count, end - begin) for count, (begin, end) in reads if end == end and end > begin]
        if sum(count for count, _ in taken) > 1e6:
            self._bandwidth = sum(count for count, _ in taken) / sum(seconds for _, seconds in taken)

# SPDX-License-Identifier: Apache-2.0
"""Fill a profile store: let the passes ask, measure what they asked, and let them ask again."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target, codegen

from ..errors import UserError, reason_of
from ..executor.devices import Devices, Executor
from ..target import device_of, is_elsewhere, is_gpu, model_of, parse_target
from ..tune.profile_store import ProfileStore, Question, kernel_key
from .measure import compiled, kernel_seconds

Measure = Callable[[Sequence[Sequence[tirx.PrimFunc]], float], Iterator[tuple[int, Sequence[float] | Exception]]]
"""Measures batches of kernels, until when they are begun: yields the number of each with its seconds, as it is done."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filled:
    """What `fill` did.

    Attributes
    ----------
    module : tvm.IRModule
        What the passes make with all answers.
    sweeps : int
        Times the passes ran.
    measured, failed, open : int
        Questions measured now; that could not be measured; left when the time was up.
    fused, kept : int
        Questions of the last sweep that the store answered: one kernel is faster, or its parts are.
    seconds : float
        Wall time of it all.
    """

    module: tvm.IRModule
    sweeps: int
    measured: int
    failed: int
    open: int
    fused: int
    kept: int
    seconds: float


def fill(
    store: ProfileStore,
    run_passes: Callable[[], tvm.IRModule],
    measure: Measure,
    budget: float = float("inf"),
    progress: Callable[[int, int], None] = lambda done, asked: None,
) -> Filled:
    """Run passes that ask `store` until it answers all their questions; each answer may raise new ones.

    Parameters
    ----------
    run_passes : callable
        Runs the passes once, with `store`.
    measure : callable
        Measures the kernels of each of some questions, in turns (`measured_by`).
    budget : float
        Seconds after which nothing more is measured. What was measured is kept.
    progress : callable
        Is told after each measurement how many questions of this sweep are done, and of how many.

    Raises
    ------
    UserError
        If nothing can be measured any more; what was measured is in the store.
    """
    start = time.monotonic()
    failed: set[tuple] = set()
    sweeps = measured = 0
    while True:
        store.forget_questions()
        module = run_passes()
        sweeps += 1
        questions = [question for question in store.asked if _key(question) not in failed]
        if not questions or time.monotonic() - start > budget:
            break
        answers = measure([_kernels(each) for each in questions], start + budget)
        for done, (number, answer) in enumerate(answers, start=1):
            if _keep(store, questions[number], answer):
                measured += 1
            else:
                failed.add(_key(questions[number]))
            progress(done, len(questions))
    fused = sum(together <= apart for together, apart in store.answered)
    kept = len(store.answered) - fused
    seconds = time.monotonic() - start
    return Filled(module, sweeps, measured, len(failed), len(questions), fused, kept, seconds)


def _key(question: Question) -> tuple:
    return tuple(tuple(map(kernel_key, side)) for side in (question.fused, question.parts))


def _kernels(question: Question) -> list[tirx.PrimFunc]:
    """Each kernel of a question once."""
    return list({kernel_key(func): func for func in (*question.fused, *question.parts)}.values())


def _keep(store: ProfileStore, question: Question, answer: Sequence[float] | Exception) -> bool:
    """Store what was measured of the kernels of a question, in turns; whether that worked."""
    if isinstance(answer, Exception):  # one kernel that cannot be built must not end an hour's work
        _logger.warning("a kernel could not be measured (%s); the cost model decides about it.", reason_of(answer))
        return False
    session = os.urandom(8).hex()
    for func, each in zip(_kernels(question), answer, strict=True):
        store.add(func, each, together=session)
    return True


def measured_by(executor: Executor, servers: Counter[str]) -> Measure:
    """The `measure` of `fill` that has each question done as one job.

    Parameters
    ----------
    servers : collections.Counter
        Is told how many questions each server of a device has measured; empty is this machine.
    """

    def measure(questions: Sequence[Sequence[tirx.PrimFunc]], end: float) -> Iterator[tuple[int, Any]]:
        jobs = [tvm.IRModule({f"kernel{n}": func for n, func in enumerate(each)}) for each in questions]
        for number, answer in executor.results(_question, jobs, executor.devices.limits.question, end):
            if not isinstance(answer, Exception):
                address, answer = answer
                servers[address] += 1
            yield number, answer

    return measure


def _question(devices: Devices, job: tvm.IRModule) -> tuple[str, list[float]]:
    """Who measured the kernels of a question, and the seconds of a launch of each; runs in a worker."""
    kernels = compiled([job[f"kernel{number}"] for number in range(len(job.functions))], devices.target)
    return devices.run(lambda device: (device.address, kernel_seconds(device, kernels)), devices.limits.question)


def device_name(target: Target) -> str | None:
    """The name of the GPU of this machine that `target` means, None for a CPU.

    A GPU of another machine goes by the name of its model, as what is measured on this one says nothing of it.
    """
    if not is_gpu(target):
        return None
    if is_elsewhere(target) or not tvm.device(target.kind.name, 0).exist:
        return model_of(target) or target.kind.name
    return str(device_of(target).device_name)


def open_store(
    path: Path | None,
    target: Target,
    threads: int | None = None,
    device: str | None = None,
    cpu: str | None = None,
) -> ProfileStore:
    """The store of what was measured for `target`; see `ProfileStore` for the rest.

    Parameters
    ----------
    device, cpu : str, optional
        Who runs the kernels, if it is neither this machine nor a device of the target's name.
    """
    return ProfileStore(path, target, threads, device or device_name(target), cpu or other_cpu(target))


def other_cpu(target: Target) -> str | None:
    """The CPU that a target names, if it is another one than this machine's; None for a GPU."""
    if is_gpu(target):
        return None
    wanted, triple = (str(target.attrs.get(name) or "") for name in ("mcpu", "mtriple"))
    if is_elsewhere(target):
        return wanted or triple
    return wanted if wanted and wanted != codegen.llvm_get_system_cpu() else None


def measured_target(text: str | None) -> Target:
    """The target a user names, if kernels for it run on this machine.

    Raises
    ------
    UserError
        If it is neither this machine's CPU nor a GPU of it.
    """
    target = parse_target(text)
    if is_gpu(target):
        device_of(target)  # says why there is none
        return target
    if other := other_cpu(target):
        raise UserError(
            f"target '{text}' is a {other} and this machine a {codegen.llvm_get_system_cpu()}: run the command on "
            f"the machine whose latencies are wanted, or name it with --tracker and --key."
        )
    return target

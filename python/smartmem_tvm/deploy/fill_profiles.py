# SPDX-License-Identifier: Apache-2.0
"""Fill a profile store: run the passes, measure the kernels whose times they lack, and repeat until none is missing."""

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
from ..executor.job_devices import Devices, Executor
from ..target import device_of, is_elsewhere, is_gpu, model_of, parse_target
from ..tune.profile_store import ProfileStore, Question, kernel_key
from .kernel_latency import compiled, kernel_seconds

Measure = Callable[[Sequence[Sequence[tirx.PrimFunc]], float], Iterator[tuple[int, Sequence[float] | Exception]]]
"""(batches of kernels, time after which none begins) -> (number of the batch, its seconds or error), when done."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filled:
    """The result of `fill`.

    Attributes
    ----------
    module : tvm.IRModule
        The module that the passes make with all measurements.
    sweeps : int
        Number of times that the passes ran.
    measured, failed, open : int
        Questions that were measured, that could not be measured, and that were left when the time was up.
    fused, kept : int
        Questions of the last sweep that the store answered: the fused kernel is faster, or its parts are.
    seconds : float
        Total wall time.
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
    """Run the passes until `store` answers all of their questions; an answer may lead to new questions.

    Parameters
    ----------
    run_passes : callable
        Runs the passes once, with `store`.
    measure : callable
        Measures the kernels of each question, in turns (`measured_by`).
    budget : float
        Seconds after which nothing more is measured. Earlier measurements are kept.
    progress : callable
        Called after each measurement with the number of questions of this sweep that are done, and of all of them.

    Raises
    ------
    UserError
        If nothing can be measured any more; earlier measurements are in the store.
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
    """Return the distinct kernels of a question."""
    return list({kernel_key(func): func for func in (*question.fused, *question.parts)}.values())


def _keep(store: ProfileStore, question: Question, answer: Sequence[float] | Exception) -> bool:
    """Store the times of the kernels of a question; return whether there are any."""
    if isinstance(answer, Exception):  # one kernel that cannot be built must not stop a long measurement
        _logger.warning("a kernel could not be measured (%s); the cost model decides about it.", reason_of(answer))
        return False
    session = os.urandom(8).hex()
    for func, each in zip(_kernels(question), answer, strict=True):
        store.add(func, each, together=session)
    return True


def measured_by(executor: Executor, servers: Counter[str]) -> Measure:
    """Return a `measure` for `fill` that runs each question as one job of `executor`.

    Parameters
    ----------
    servers : collections.Counter
        Counts the questions measured by each server of a device; the empty name is this machine.
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
    """Measure the kernels of a question, in a worker; return the server and the seconds of a launch of each."""
    kernels = compiled([job[f"kernel{number}"] for number in range(len(job.functions))], devices.target)
    return devices.run(lambda device: (device.address, kernel_seconds(device, kernels)), devices.limits.question)


def device_name(target: Target) -> str | None:
    """Return the name of the GPU of this machine that `target` means, None for a CPU.

    A GPU of another machine has the name of its model: measurements on this machine do not apply to it.
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
    """Return the store of measurements for `target`; see `ProfileStore` for the other parameters.

    Parameters
    ----------
    device, cpu : str, optional
        The device or CPU that runs the kernels, if it is neither this machine's nor named by the target.
    """
    return ProfileStore(path, target, threads, device or device_name(target), cpu or other_cpu(target))


def other_cpu(target: Target) -> str | None:
    """Return the CPU that a target names if it is not this machine's, else None; None for a GPU."""
    if is_gpu(target):
        return None
    wanted, triple = (str(target.attrs.get(name) or "") for name in ("mcpu", "mtriple"))
    if is_elsewhere(target):
        return wanted or triple
    return wanted if wanted and wanted != codegen.llvm_get_system_cpu() else None


def measured_target(text: str | None) -> Target:
    """Return the target that a user names, if kernels for it run on this machine.

    Raises
    ------
    UserError
        If it is neither this machine's CPU nor one of its GPUs.
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

# SPDX-License-Identifier: Apache-2.0
"""Fill a profile store: let the passes ask, measure what they asked, and let them ask again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx
from tvm.target import Target, codegen

from ..errors import UserError
from ..schedule.gpu_launch import is_gpu
from ..tune.profile_store import ProfileStore, Question, kernel_key
from .measure import launch_seconds
from .target import device_of, is_elsewhere, parse_target

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
    measure: Callable[[Sequence[tirx.PrimFunc]], Sequence[float]],
    budget: float = float("inf"),
    progress: Callable[[int, int], None] = lambda done, asked: None,
) -> Filled:
    """Run passes that ask `store` until it answers all their questions; each answer may raise new ones.

    Parameters
    ----------
    run_passes : callable
        Runs the passes once, with `store`.
    measure : callable
        Seconds of one launch of each of several kernels, taken in turns (`deploy.measure.launch_seconds`).
    budget : float
        Seconds after which nothing more is measured. What was measured is kept.
    progress : callable
        Is told after each measurement how many questions of this sweep are done, and of how many.
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
        for done, question in enumerate(questions):
            if time.monotonic() - start > budget:
                break
            if _measure(store, question, measure):
                measured += 1
            else:
                failed.add(_key(question))
            progress(done + 1, len(questions))
    fused = sum(together <= apart for together, apart in store.answered)
    kept = len(store.answered) - fused
    seconds = time.monotonic() - start
    return Filled(module, sweeps, measured, len(failed), len(questions), fused, kept, seconds)


def _key(question: Question) -> tuple:
    return tuple(tuple(map(kernel_key, side)) for side in (question.fused, question.parts))


def _measure(store: ProfileStore, question: Question, measure) -> bool:
    """Measure all kernels of a question in turns; whether that worked."""
    kernels = {kernel_key(func): func for func in (*question.fused, *question.parts)}
    try:
        seconds = measure(list(kernels.values()))
    except UserError:
        raise
    except Exception as err:  # one kernel that cannot be built must not end an hour's work
        reason = (str(err).strip().splitlines() or [type(err).__name__])[-1]
        _logger.warning("a kernel could not be measured (%s); the cost model decides about it.", reason)
        return False
    session = os.urandom(8).hex()
    for func, each in zip(kernels.values(), seconds, strict=True):
        store.add(func, each, together=session)
    return True


def measure_on(target: Target) -> Callable[[Sequence[tirx.PrimFunc]], list[float]]:
    """The `measure` of `fill` for kernels compiled for `target`."""
    return lambda functions: launch_seconds(functions, target)


def device_name(target: Target) -> str | None:
    """The name of the GPU of this machine that `target` means, None for a CPU.

    A GPU of another machine goes by the name of its model, as what is measured on this one says nothing of it.
    """
    if not is_gpu(target):
        return None
    if is_elsewhere(target) or not tvm.device(target.kind.name, 0).exist:
        return str(target.attrs.get("model") or target.kind.name)
    return str(device_of(target).device_name)


def open_store(path: Path | None, target: Target, threads: int | None = None) -> ProfileStore:
    """The store of what was measured for `target` on its device; see `ProfileStore` for the rest."""
    return ProfileStore(path, target, threads, device_name(target))


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
    wanted, here = str(target.attrs.get("mcpu", "")), codegen.llvm_get_system_cpu()
    if wanted and wanted != here:
        raise UserError(
            f"target '{text}' is a {wanted} and this machine a {here}: run `smartmem profile` on the machine "
            f"whose latencies are wanted."
        )
    return target

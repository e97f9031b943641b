# SPDX-License-Identifier: Apache-2.0
"""Kernels measured and judged in a worker process, as a kernel may crash whoever runs it, and hang."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..errors import UserError
from ..tune.faults import MachineFailed, failure_of
from ..tune.records import packed, unpacked
from ..tune.workers import Answer, Workers
from . import judge as judge_module
from . import place
from .gpu_build import keeps_binaries
from .judge import Verdict

_PATIENCE = 600.0  # seconds for one kernel: some compilations, and some seconds of launches


class Apart:
    """What `judge` does, in the worker that also measures candidates: on the same cores.

    Parameters
    ----------
    worker : Workers
        `tune.runner.measuring_worker`.
    compilers : Workers, optional
        `tune.build.building_workers`: what a compiler leaves on disk they make, side by side, before it is asked for.
    patience : float
        Seconds for one kernel.
    at : callable
        Where the kernels run; picklable.
    """

    def __init__(
        self, worker: Workers, compilers: Workers | None = None, patience: float = _PATIENCE, at: place.At = place.here
    ):
        self._worker, self._compilers, self._patience, self._at = worker, compilers, patience, at

    def untuned_seconds(self, mod: tvm.IRModule, target: Target) -> float:
        """See `judge.untuned_seconds`.

        Raises
        ------
        RuntimeError
            If the kernel cannot be run.
        UserError
            If the machine has no room for it.
        """
        answer = self._ask(_untuned_seconds, (mod, target))
        if answer.error and not failure_of(answer.error).candidate:
            raise UserError(f"A kernel could not be measured here ({answer.error}); run the command again.")
        if answer.error:
            raise RuntimeError(answer.error)
        return answer.value

    def judge(self, mod: tvm.IRModule, target: Target, records: Sequence[ms.database.TuningRecord]) -> list[Verdict]:
        """See `judge.judge`; what crashes, hangs or raises there is wrong.

        Raises
        ------
        MachineFailed
            If the untuned kernel fails too, or there is no room for any of them.
        """
        packages = [packed(each) for each in records]
        if len(records) > 1:
            self._compile_ahead([(mod, target, each) for each in (None, *packages)])
        answer = self._ask(_judge, (mod, target, packages))
        if not answer.error:
            return answer.value
        if len(records) > 1:  # one of them spoils it for the others
            return [verdict for record in records for verdict in self.judge(mod, target, [record])]
        reason = (
            answer.error if not failure_of(answer.error).candidate else self._ask(_untuned_seconds, (mod, target)).error
        )
        if reason:
            raise MachineFailed(reason)
        return [Verdict(None, None, answer.error)]

    def _compile_ahead(self, jobs: Sequence[tuple]) -> None:
        if self._compilers is not None and keeps_binaries(jobs[0][1]):
            self._compilers.map(_compile, jobs, self._patience)

    def _ask(self, function, job: tuple) -> Answer:
        (answer,) = self._worker.map(partial(function, self._at), [job], self._patience)
        return answer


def _compile(job: tuple) -> None:
    mod, target, package = job
    judge_module.CompiledKernel(mod, target, package and unpacked(package))


def _untuned_seconds(at: place.At, job: tuple) -> float:
    return judge_module.untuned_seconds(*job, at)


def _judge(at: place.At, job: tuple) -> list[Verdict]:
    mod, target, records = job
    return judge_module.judge(mod, target, [unpacked(each) for each in records], at)

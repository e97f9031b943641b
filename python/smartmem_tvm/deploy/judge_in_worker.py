# SPDX-License-Identifier: Apache-2.0
"""Measure and judge kernels in an executor's worker processes, as a kernel may crash its process, or hang."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..executor.faults import MachineFailed, machine_fault
from ..executor.job_devices import Devices, Executor
from ..executor.workers import Answer, Workers
from ..tune.records import packed, unpacked
from . import judge as judge_module
from .gpu_build import keeps_binaries
from .judge import Verdict


class WorkerJudge:
    """Runs the module `judge` in the worker that also measures candidates, so on the same cores.

    Parameters
    ----------
    executor : Executor
    compilers : Workers, optional
        Workers of `tune.build_candidates.building_workers`; they fill the compiler's cache on disk in parallel before.
    """

    def __init__(self, executor: Executor, compilers: Workers | None = None):
        self._executor, self._compilers = executor, compilers

    def untuned_seconds(self, mod: tvm.IRModule, target: Target) -> float:
        """See `judge.untuned_seconds`.

        Raises
        ------
        RuntimeError
            If the kernel cannot be run.
        UserError
            If the machine has no room for it.
        """
        return self._answer(_untuned_seconds, (mod, target)).result()

    def judge(self, mod: tvm.IRModule, target: Target, records: Sequence[ms.database.TuningRecord]) -> list[Verdict]:
        """See `judge.judge`; a record whose kernel crashes, hangs or raises is judged wrong.

        Raises
        ------
        MachineFailed
            If the untuned kernel fails too, or the machine has no room for any of them.
        """
        packages = [packed(each) for each in records]
        if len(records) > 1:
            self._compile_ahead([(mod, target, each) for each in (None, *packages)])
        answer = self._answer(_judge, (mod, target, packages))
        if not answer.error:
            return answer.value
        if len(records) > 1:  # one record made the whole job fail: judge them one by one
            return [verdict for record in records for verdict in self.judge(mod, target, [record])]
        fault = answer.error if machine_fault(answer.error) else self._answer(_untuned_seconds, (mod, target)).error
        if fault:
            raise MachineFailed(fault)
        return [Verdict(None, None, answer.error)]

    def _compile_ahead(self, jobs: Sequence[tuple]) -> None:
        if self._compilers is not None and keeps_binaries(jobs[0][1]):
            self._compilers.map(_compile, jobs, self._executor.devices.limits.verdict)

    def _answer(self, function, job: tuple) -> Answer:
        (answer,) = self._executor.map(function, [job], self._executor.devices.limits.verdict)
        return answer


def _compile(job: tuple) -> None:
    mod, target, package = job
    judge_module.CompiledKernel(mod, target, package and unpacked(package))


def _untuned_seconds(devices: Devices, job: tuple) -> float:
    return judge_module.untuned_seconds(*job, devices)


def _judge(devices: Devices, job: tuple) -> list[Verdict]:
    mod, target, records = job
    return judge_module.judge(mod, target, [unpacked(each) for each in records], devices)

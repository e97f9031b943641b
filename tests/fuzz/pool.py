# SPDX-License-Identifier: Apache-2.0
"""Many cases, in processes that may crash and hang without harm to the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from smartmem_tvm.executor.faults import machine_fault
from smartmem_tvm.executor.workers import Answer, Confines, Workers

from . import check
from .check import Job, Verdict

_MEMORY = 8 * 2**30  # bytes of a worker
_IMPORTS = ("tvm", "onnxruntime", "smartmem_tvm.deploy.build", "smartmem_tvm.frontend", "fuzz.check")


class Pool:
    """Workers that check cases.

    Parameters
    ----------
    workers : int
        Processes.
    timeout : float
        Seconds for one case, after which it counts as hanging.
    """

    def __init__(self, workers: int, timeout: float):
        os.environ.setdefault("TVM_NUM_THREADS", "1")  # the workers inherit these; one core each
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("TVM_BIND_THREADS", "0")
        self._workers = Workers(workers, timeout, Confines(memory=_MEMORY), _IMPORTS)
        self._others = Workers(1, timeout, Confines(memory=_MEMORY), ("onnxruntime", "fuzz.check"))

    def verdicts(self, jobs: Sequence[Job], go_on: Callable[[], bool] = lambda: True) -> Iterator[tuple[int, dict]]:
        """Number of a job -> what `check.work` says of it, as they are done; crashes and hangs are verdicts too."""
        for number, answer in self._workers.as_done(check.work, jobs, go_on=go_on):
            verdict = answer.value or ended(answer)
            if verdict["kind"] in (check.CRASH, check.HANG) and not self._draws(jobs[number]):
                verdict = asdict(Verdict(check.NOT_DRAWN, detail=f"ONNX Runtime: {answer.error}"))
            yield number, verdict

    def _draws(self, job: Job) -> bool:
        """Whether a case can be drawn, and ONNX Runtime computes it, without a crash."""
        return self._others.map(check.prepare, [job])[0].value is not None

    def close(self) -> None:
        """End the processes."""
        self._workers.close()
        self._others.close()


def ended(answer: Answer) -> dict:
    """The verdict on a case that its worker did not outlive."""
    if "longer than" in answer.error:
        kind = check.HANG
    elif machine_fault(answer.error):
        kind = check.KILLED
    elif "crashed" in answer.error or "exit code" in answer.error:
        kind = check.CRASH
    else:
        kind = check.INTERNAL
    return asdict(Verdict(kind, answer.error, answer.error))

# SPDX-License-Identifier: Apache-2.0
"""An executor that does its jobs in this process at once, where a test can observe them."""

from smartmem_tvm.deploy.this_machine import ThisMachine
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.job_devices import Executor
from smartmem_tvm.executor.workers import Answer


class AtOnce:
    """A replacement of `Workers`."""

    def __init__(self, count=1):
        self.count, self.jobs = count, []

    def map(self, function, jobs, patience):
        return [answer for _, answer in self.as_done(function, jobs, patience)]

    def as_done(self, function, jobs, patience, go_on=lambda: True):
        for number, job in enumerate(jobs):
            if not go_on():
                return
            self.jobs.append(job)
            yield number, _answer(function, job)

    def close(self):
        """Do nothing: no process is left."""


def _answer(function, job):
    try:
        return Answer(function(job))
    except UserError as error:
        return Answer(error=str(error))
    except Exception as error:
        return Answer(error=f"{type(error).__name__}: {error}")


def executor(target, count=1, devices=None):
    """Return such an executor for this machine, or for some devices."""
    return Executor(devices or ThisMachine(target), AtOnce(count))

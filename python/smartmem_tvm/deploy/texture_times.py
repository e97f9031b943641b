# SPDX-License-Identifier: Apache-2.0
"""Kernels with tensors in textures and in buffers, measured on the device as `TextureTrial` asks for them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.target import Target

from ..errors import UserError, reason_of
from ..executor.devices import Devices, Executor
from ..executor.readings import TEXTURES
from ..ir.texels import is_texture
from ..texture_trial import Measure
from ..transform.lift_workspaces import with_parameters, workspaces
from ..tune.profile_store import ProfileStore, kernel_key
from .gpu_build import build_kernels
from .measure import Kernels, kernel_seconds, random_weights
from .textures import TIR_PIPELINE
from .weights import Weight

_logger = logging.getLogger(__name__)
_SETS = 2  # of arguments, which take turns: no kernel of a network gets the same ones twice in a row


class TextureTimes:
    """Has measured what a store lacks, and keeps it there: one launch after the other, on this machine by its clock.

    What handing a launch over takes is in the time where that is longer than the kernel, for then a network waits for
    it too; drivers take longer with textures than with buffers.

    Parameters
    ----------
    store : ProfileStore
        For `target` on this machine's device; each measurement is on the disk before the next one is made.
    target : Target
        A GPU with textures.
    executor : Executor
        Of its devices.
    budget : float
        Seconds after which nothing more is measured.
    progress : callable
        Is told after each measurement how many there are.

    Attributes
    ----------
    measured, failed, open : int
        Kernels measured now; that could not be measured; left when the time was up. Each form of a kernel counts.
    servers : collections.Counter
        Address of a server -> kernels that were measured there; empty is this machine.
    """

    def __init__(
        self,
        store: ProfileStore,
        target: Target,
        executor: Executor,
        budget: float = float("inf"),
        progress: Callable[[int], None] = lambda done: None,
    ):
        self.store, self.target, self.executor, self.progress = store, target, executor, progress
        self.servers: Counter[str] = Counter()
        self.end = time.monotonic() + budget
        self.measured = self.open = 0
        self._failed: set[str] = set()

    @property
    def failed(self) -> int:
        """See above."""
        return len(self._failed)

    def __call__(self, kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> float | None:
        """Seconds of one launch of an unscheduled kernel, None if it is not to be had; `scheduled` holds it alone."""
        known = self.store.latency(kernel)
        if known is not None or kernel_key(kernel) in self._failed:
            return known
        if time.monotonic() > self.end:
            self.open += 1
            return None
        try:
            return self._keep(kernel, self._measure(kernel, scheduled))
        except UserError:
            raise
        except Exception as err:
            return self._keep(kernel, err)

    def ahead(self, run_passes: Callable[[Measure], object]) -> None:
        """Measure side by side what the passes ask about where every texture is worth it; the rest they ask later.

        Parameters
        ----------
        run_passes : callable
            Runs them, to ask what it is given in place of this object.
        """
        asked: dict[str, tuple[tirx.PrimFunc, tvm.IRModule]] = {}

        def hopeful(kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> float:
            asked.setdefault(kernel_key(kernel), (kernel, scheduled))
            return 1 / (1 + sum(map(is_texture, kernel.params)))

        run_passes(hopeful)
        unknown = [each for each in asked.values() if self.store.latency(each[0]) is None]
        jobs = [_job(*each) for each in unknown]
        for number, answer in self.executor.results(_seconds, jobs, self._limit, self.end):
            self._keep(unknown[number][0], answer if isinstance(answer, Exception) else self._counted(answer))

    def _keep(self, kernel: tirx.PrimFunc, answer: float | Exception) -> float | None:
        if isinstance(answer, Exception):  # one kernel that a driver refuses must not end the work on all others
            reason = reason_of(answer)
            _logger.warning("a kernel could not be measured (%s); nothing measured decides about it.", reason)
            self._failed.add(kernel_key(kernel))
            return None
        self.store.add(kernel, answer)
        self.measured += 1
        self.progress(self.measured)
        return answer

    @property
    def _limit(self) -> float:
        return self.executor.devices.limits.question

    def _measure(self, kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> float:
        return self._counted(self.executor.result(_seconds, _job(kernel, scheduled), self._limit))

    def _counted(self, answer: tuple[str, float]) -> float:
        address, seconds = answer
        self.servers[address] += 1
        return seconds


def _job(kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> tuple[tvm.IRModule, tvm.IRModule]:
    return tvm.IRModule({"it": kernel}), scheduled


def _seconds(devices: Devices, job: tuple[tvm.IRModule, tvm.IRModule]) -> tuple[str, float]:
    """Who measured a kernel, and the seconds of a launch; runs in a worker."""
    kernels = _compiled(job[0]["it"], job[1], devices.target)
    return devices.run(
        lambda device: (device.address, *kernel_seconds(device, kernels, _SETS, TEXTURES)), devices.limits.question
    )


def _compiled(kernel: tirx.PrimFunc, scheduled: tvm.IRModule, target: Target) -> Kernels:
    """A scheduled kernel, with its workspaces behind its arguments."""
    ((name, func),) = scheduled.functions_items()
    workspace = workspaces(func)
    code = build_kernels(tvm.IRModule({name: with_parameters(func, workspace)}), target, TIR_PIPELINE)
    empty = [Weight(tvm.runtime.empty([int(dim) for dim in each.shape], str(each.dtype))) for each in workspace]
    return Kernels(code, {name.name_hint: [*random_weights(kernel), *empty]})

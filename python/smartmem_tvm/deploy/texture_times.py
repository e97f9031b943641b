# SPDX-License-Identifier: Apache-2.0
"""Measure kernels with tensors in textures and in buffers on the device, on demand of `TextureTrial`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.target import Target

from ..errors import UserError, reason_of
from ..executor.job_devices import Devices, Executor
from ..executor.readings import TEXTURES
from ..ir.texels import is_texture
from ..texture_trial import Measure
from ..transform.memory.lift_workspaces import with_parameters, workspaces
from ..tune.profile_store import ProfileStore, kernel_key
from .gpu_build import build_kernels
from .kernel_latency import Kernels, kernel_seconds, random_weights
from .textures import TIR_PIPELINE
from .weights import Weight

_logger = logging.getLogger(__name__)
_SETS = 2  # sets of arguments, used in turns: in a network, no kernel gets the same arguments twice in a row


class TextureTimes:
    """Measures kernels that a store lacks, and stores the times; on this machine, back to back by the host's clock.

    The time includes the submission of a launch if that takes longer than the kernel, since a network waits for it too.
    Drivers take longer with textures than with buffers.

    Parameters
    ----------
    store : ProfileStore
        Store for `target` on this machine's device; each measurement is on disk before the next one starts.
    target : Target
        A GPU with textures.
    executor : Executor
        Executor of the target's devices.
    budget : float
        Seconds after which nothing more is measured.
    progress : callable
        Called after each measurement with the number of measurements.

    Attributes
    ----------
    measured, failed, open : int
        Kernels that were measured, that could not be measured, and that were left when the time was up. Each form of a
        kernel counts.
    servers : collections.Counter
        Address of a server -> kernels that were measured there; the empty address is this machine.
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
        """Number of kernels that could not be measured."""
        return len(self._failed)

    def __call__(self, kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> float | None:
        """Return the seconds of a launch of an unscheduled kernel, None if unavailable; `scheduled` holds only it."""
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
        """Measure in parallel the kernels that the passes need if every texture pays; others are measured later.

        Parameters
        ----------
        run_passes : callable
            Runs the passes with the given measure in place of this object.
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
        if isinstance(answer, Exception):  # one kernel that a driver refuses must not stop the others
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
    """Measure a kernel, in a worker; return the server and the seconds of a launch."""
    kernels = _compiled(job[0]["it"], job[1], devices.target)
    return devices.run(
        lambda device: (device.address, *kernel_seconds(device, kernels, _SETS, TEXTURES)), devices.limits.question
    )


def _compiled(kernel: tirx.PrimFunc, scheduled: tvm.IRModule, target: Target) -> Kernels:
    """Compile a scheduled kernel, with its workspaces after its arguments."""
    ((name, func),) = scheduled.functions_items()
    workspace = workspaces(func)
    code = build_kernels(tvm.IRModule({name: with_parameters(func, workspace)}), target, TIR_PIPELINE)
    empty = [Weight(tvm.runtime.empty([int(dim) for dim in each.shape], str(each.dtype))) for each in workspace]
    return Kernels(code, {name.name_hint: [*random_weights(kernel), *empty]})

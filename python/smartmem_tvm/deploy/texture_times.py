# SPDX-License-Identifier: Apache-2.0
"""Kernels with tensors in textures and in buffers, measured on the device as `TextureTrial` asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tvm
from tvm import tirx
from tvm.target import Target

from ..errors import UserError, reason_of
from ..ir.texels import is_texture
from ..target import device_of
from ..texture_trial import Measure
from ..transform.lift_workspaces import with_parameters, workspaces
from ..tune.profile_store import ProfileStore, kernel_key
from .gpu_build import build_kernels
from .measure import Kernels, interleaved, launcher, random_weights
from .side_by_side import side_by_side
from .textures import TIR_PIPELINE
from .weights import Weight

_logger = logging.getLogger(__name__)
_TURNS = 20  # readings of the clock: a GPU is as fast in one millisecond as in the next
_SETS = 2  # of arguments, which take turns: no kernel of a network gets the same ones twice in a row


class Elsewhere(Protocol):
    """Devices of other machines (`remote.profiling.Lent`).

    Attributes
    ----------
    lanes : int
        Devices that may measure at a time.
    """

    lanes: int

    def prepare(self, kernels: Kernels) -> Any:
        """What is sent there."""

    def seconds(self, prepared: Any, sets: int, turns: int) -> Sequence[float]:
        """Median seconds of a launch of each, taken in turns, each with so many sets of arguments."""


class TextureTimes:
    """Measures what a store lacks, and keeps it there: one launch after the other, on this machine by the host's clock.

    What handing a launch over takes is in the time where that is longer than the kernel, for then a network waits for
    it too; drivers take longer with textures than with buffers.

    Parameters
    ----------
    store : ProfileStore
        For `target` on this machine's device; each measurement is on the disk before the next one is made.
    target : Target
        A GPU with textures, of this machine unless `elsewhere` is given.
    budget : float
        Seconds after which nothing more is measured.
    progress : callable
        Is told after each measurement how many there are.
    elsewhere : Elsewhere, optional
        Measures in place of this machine.

    Attributes
    ----------
    measured, failed, open : int
        Kernels measured now; that could not be measured; left when the time was up. Each form of a kernel counts.
    """

    def __init__(
        self,
        store: ProfileStore,
        target: Target,
        budget: float = float("inf"),
        progress: Callable[[int], None] = lambda done: None,
        elsewhere: Elsewhere | None = None,
    ):
        self.store, self.target, self.progress, self.elsewhere = store, target, progress, elsewhere
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
        prepare, lanes = (lambda job: self._prepared(*job)), self.elsewhere.lanes
        for (kernel, _), answer in side_by_side(unknown, prepare, self._there, lanes, self.end):
            self._keep(kernel, answer)

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

    def _measure(self, kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> float:
        if self.elsewhere is not None:
            return self._there(self._prepared(kernel, scheduled))
        return self._here(_compiled(kernel, scheduled, self.target))

    def _prepared(self, kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> Any:
        return self.elsewhere.prepare(_compiled(kernel, scheduled, self.target))

    def _there(self, prepared: Any) -> float:
        (seconds,) = self.elsewhere.seconds(prepared, _SETS, _TURNS)
        return seconds

    def _here(self, kernels: Kernels) -> float:
        device = device_of(self.target)
        # Before it is this process's turn: the driver compiles on the CPU, and would do so at the first launch.
        tvm.get_global_func("smartmem.opencl.build")(kernels.code, device.index)
        with self.store.turn():
            ((name, weights),) = kernels.data.items()
            sets = [[each.on(device) for each in weights] for _ in range(_SETS)]
            return interleaved([launcher(kernels.code[name], sets, device)], _TURNS)[0]


def _compiled(kernel: tirx.PrimFunc, scheduled: tvm.IRModule, target: Target) -> Kernels:
    """A scheduled kernel, with its workspaces behind its arguments."""
    ((name, func),) = scheduled.functions_items()
    workspace = workspaces(func)
    code = build_kernels(tvm.IRModule({name: with_parameters(func, workspace)}), target, TIR_PIPELINE)
    empty = [Weight(tvm.runtime.empty([int(dim) for dim in each.shape], str(each.dtype))) for each in workspace]
    return Kernels(code, {name.name_hint: [*random_weights(kernel), *empty]})

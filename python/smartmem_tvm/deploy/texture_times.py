# SPDX-License-Identifier: Apache-2.0
"""Kernels with tensors in textures and in buffers, measured on the device as `TextureTrial` asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.target import Target

from ..errors import UserError
from ..transform.lift_workspaces import with_parameters, workspaces
from ..tune.profile_store import ProfileStore, kernel_key
from .gpu_build import build_kernels
from .measure import interleaved, launcher, random_arguments
from .target import device_of
from .textures import TIR_PIPELINE

_logger = logging.getLogger(__name__)
_TURNS = 20  # readings of the clock: a GPU is as fast in one millisecond as in the next
_SETS = 2  # of arguments, which take turns: no kernel of a network gets the same ones twice in a row


class TextureTimes:
    """Measures what a store lacks, and keeps it there: one launch after the other, by the host's clock.

    What handing a launch over takes is in the time where that is longer than the kernel, for then a network waits for
    it too; drivers take longer with textures than with buffers.

    Parameters
    ----------
    store : ProfileStore
        For `target` on this machine's device; each measurement is on the disk before the next one is made.
    target : Target
        A GPU of this machine, with textures.
    budget : float
        Seconds after which nothing more is measured.
    progress : callable
        Is told after each measurement how many there are.

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
    ):
        self.store, self.target, self.progress = store, target, progress
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
            seconds = self._measure(kernel, scheduled)
        except UserError:
            raise
        except Exception as err:  # one kernel that a driver refuses must not end the work on all others
            reason = (str(err).strip().splitlines() or [type(err).__name__])[-1]
            _logger.warning("a kernel could not be measured (%s); nothing measured decides about it.", reason)
            self._failed.add(kernel_key(kernel))
            return None
        self.store.add(kernel, seconds)
        self.measured += 1
        self.progress(self.measured)
        return seconds

    def _measure(self, kernel: tirx.PrimFunc, scheduled: tvm.IRModule) -> float:
        ((name, func),) = scheduled.functions_items()
        workspace = workspaces(func)
        device, arrays = device_of(self.target), random_arguments(kernel)
        func = with_parameters(func, workspace)
        module = build_kernels(tvm.IRModule({name: func}), self.target, TIR_PIPELINE)
        # Before it is this process's turn: the driver compiles on the CPU, and would do so at the first launch.
        tvm.get_global_func("smartmem.opencl.build")(module, device.index)
        with self.store.turn():
            sets = [
                [_on_device(array, param.scope(), device) for array, param in zip(arrays, kernel.params, strict=True)]
                + [tvm.runtime.empty([int(dim) for dim in each.shape], str(each.dtype), device) for each in workspace]
                for _ in range(_SETS)
            ]
            return interleaved([launcher(module[name.name_hint], sets, device)], _TURNS)[0]


def _on_device(array, scope: str, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    place = tvm.runtime.empty(array.shape, str(array.dtype), device, mem_scope=scope)
    return place.copyfrom(array)

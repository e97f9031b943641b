# SPDX-License-Identifier: Apache-2.0
"""TextureTrial: schedule a kernel as later phases will, to see whether it can have its textures, and how fast it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import tvm
import tvm_ffi
from tvm import tirx

from .analysis.kernel_time import kernel_seconds
from .errors import UserError
from .ir.kernel import KEY_AXIS
from .ir.texels import is_texture, read_singly
from .planner.texture_choice import PlacementTrial
from .schedule import ScheduleKernels
from .schedule.core.nest import memory_only
from .schedule.gpu.attention.over_keys import GpuOverKeys
from .schedule.schedule_kernels import kernel_rules
from .target import named_device
from .transform.layout.check_textures import CheckTextures
from .transform.layout.lower_rotations import LowerRotations
from .tvm_mends.stage_texels import StageTexels

Times = Callable[[tirx.PrimFunc], float | None]
Measure = Callable[[tirx.PrimFunc, tvm.IRModule], float | None]


class TextureTrial:
    """Schedules kernels for `target` and estimates their time; equal kernels are tried once.

    Parameters
    ----------
    target : tvm.target.Target
        A GPU with textures. Times are estimated if it names a device (`tables.targets`).
    times : callable, optional
        Measured seconds of one launch of an unscheduled PrimFunc on `target`, None for those never measured
        (`tune.profile_store.ProfileStore.latency`).
    measure : callable, optional
        Replaces `times`: takes an unscheduled PrimFunc and a module with its scheduled form, which it may launch
        (`deploy.texture_times.TextureTimes`).
    """

    def __init__(self, target: tvm.target.Target, times: Times | None = None, measure: Measure | None = None):
        self.target, self.known = target, {}
        self.measured = measure or (lambda kernel, _: times(kernel) if times else None)
        # Most of a kernel is its work on chip, which matters only if the kernel runs.
        self.scheduling = nullcontext if measure else memory_only
        self.device = named_device(target)

    def __call__(self, kernel: tirx.PrimFunc) -> PlacementTrial:
        """Return the trial of a kernel, scheduled as it will be later."""
        key = tvm_ffi.structural_hash(kernel)
        for other, answer in self.known.setdefault(key, []):
            if tvm_ffi.structural_equal(kernel, other):
                return answer
        answer = self._try(kernel)
        self.known[key].append((kernel, answer))
        return answer

    def _try(self, kernel: tirx.PrimFunc) -> PlacementTrial:
        mod = tvm.IRModule({"it": kernel.with_attr("global_symbol", "it")})
        try:
            with self.target, self.scheduling():
                scheduled = tvm.transform.Sequential([LowerRotations(), ScheduleKernels(), CheckTextures()])(mod)
        except UserError as error:
            return PlacementTrial(str(error))
        rule = kernel_rules(scheduled)["it"]
        if rule["catch_all"] and any(map(is_texture, kernel.params)):
            return PlacementTrial(f"no rule but {rule['name']} knows it")
        if KEY_AXIS in (kernel.attrs or {}) and rule["name"] != GpuOverKeys().name:
            return PlacementTrial(f"{rule['name']} would read all keys of the cache, and not up to a length")
        staged = StageTexels()(scheduled)["it"]
        measured, singly = self.measured(kernel, scheduled), read_singly(staged)
        if self.device is None:
            return PlacementTrial(measured=measured, singly=singly)
        return PlacementTrial(
            measured=measured, singly=singly, estimate=lambda: kernel_seconds(kernel, staged, self.device)
        )

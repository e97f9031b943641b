# SPDX-License-Identifier: Apache-2.0
"""The device of this machine for a target, and compiled models loaded on any device."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tvm
from tvm.target import Target

from ..executor.gpu_turn import LOCK, gpu_turn
from ..executor.job_devices import Deadlines, Device, Devices
from ..executor.readings import BY_DEVICE_CLOCK, CANDIDATE, Clock, evaluator_clock, host_clock
from ..executor.workers import Confines, Workers
from ..target import device_of, has_textures, is_gpu, is_opencl
from .device_clock import device_clock
from .inference_session import to_numpy
from .weights import Machine, Weight

_LIMITS = Deadlines(candidate=30.0, question=600.0, verdict=600.0)
Result = TypeVar("Result")


@dataclass(frozen=True)
class ThisMachine(Devices):
    """The device of this machine for a target.

    Attributes
    ----------
    takes_turns : bool
        Whether kernels on a GPU run only while no other process of this user measures there.
    """

    target: Target
    takes_turns: bool = False
    limits: Deadlines = _LIMITS
    lock: Path = LOCK

    def run(self, work: Callable[[Device], Result], seconds: float = float("inf")) -> Result:
        """Return the result of `work` on this machine; the worker keeps the deadline.

        Raises
        ------
        UserError
            If this machine has no device for the target.
        """
        return work(LocalDevice(self.target, self.lock if self.takes_turns and is_gpu(self.target) else None))


class LocalDevice(Device):
    """A device of this machine."""

    def __init__(self, target: Target, lock: Path | None = None):
        self.target, self.device, self._lock = target, device_of(target), lock

    def load(self, code: Any) -> Any:
        """Return the code itself, or load it from a file."""
        if isinstance(code, str | Path):
            return tvm.runtime.load_module(str(code))
        if isinstance(code, tvm.runtime.Module) and is_opencl(self.target):
            # The driver compiles on the CPU, here and not at the first launch, while others would wait for the GPU.
            tvm.get_global_func("smartmem.opencl.build")(code, self.device.index)
        return code

    def running(self, kernels: int = 1, seconds: float | None = None) -> AbstractContextManager:
        """Return a context manager that waits for this process's turn on the GPU, if processes take turns."""
        return nullcontext() if self._lock is None else gpu_turn(self._lock)

    def clock(self, code: Any, name: str, sets: Sequence[Sequence], handing_over: bool = False) -> Clock:
        """Return the host's clock if submission counts; otherwise the GPU's own, or TVM's, which launches from C++."""
        if handing_over:
            return host_clock(launcher(code[name], sets, self.device))
        if is_gpu(self.target):
            function, (arguments,) = code[name], sets
            return _device_clock(self.target.kind.name, lambda: function(*arguments))
        return evaluator_clock(code, name, self.device, sets)


def _device_clock(kind: str, launch: Callable[[], object]) -> Clock:
    """Return a clock that reads the device's own clock; each reading is of some launches in a row."""

    def clock(_launches: int, readings: int) -> list[float]:
        measured, found, end = device_clock(kind), [], time.monotonic() + BY_DEVICE_CLOCK
        while len(found) < min(readings, CANDIDATE.fewest) or (len(found) < readings and time.monotonic() < end):
            found.append(measured.seconds(launch))
        return found

    return clock


def launcher(function: Callable, sets: Sequence[Sequence], device: tvm.runtime.Device) -> Callable[[int], None]:
    """Return a function that launches a kernel a number of times, with the sets of arguments in turns."""

    def launch(times: int) -> None:
        for number in range(times):
            function(*sets[number % len(sets)])
        device.sync()

    return launch


def measuring_worker(
    imports: Sequence[str] = (), cores: Collection[int] = (), memory: int | None = None, gpu: bool = False
) -> Workers:
    """Return the single worker process of this machine that runs kernels, on $TVM_NUM_THREADS threads.

    Parameters
    ----------
    imports, cores, memory : optional
        See `Workers` and `Confines`.
    gpu : bool
        Whether kernels run on a GPU, on which no other worker of this kind measures while this one has work.
    """
    turn = gpu_turn if gpu else nullcontext
    return Workers(1, _LIMITS.candidate, Confines(cores, memory), imports, turn)


@dataclass(frozen=True)
class LoadedModel:
    """A compiled model on a device, with its inputs on the device."""

    on: Device
    machine: Machine
    tensors: Sequence[tvm.runtime.Tensor]

    def outputs(self) -> list[np.ndarray]:
        """Return the results of one inference."""
        with self.on.running():
            return to_numpy(self.machine["main"](*self.tensors))

    def clock(self) -> Clock:
        """Return the device's clock for inferences; for this machine's CPU it includes the host's share, as in use."""
        local_cpu = not (self.on.address or is_gpu(self.on.target))
        return self.on.clock(self.machine, "main", [self.tensors], handing_over=local_cpu)


def model_on(device: Device, code: Any, weights: Sequence[Weight], inputs: Sequence[Weight]) -> LoadedModel:
    """Load a compiled model onto a device, with its weights and inputs."""
    loaded = device.load(code)
    with device.transfer(sum(each.nbytes for each in (*weights, *inputs)), "what a kernel reads"):
        machine = Machine(loaded, weights, device.device, has_textures(device.target))
        return LoadedModel(device, machine, [each.on(device.device) for each in inputs])

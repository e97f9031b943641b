# SPDX-License-Identifier: Apache-2.0
"""Run each kernel of a model on a device and on this machine's CPU, to find those that a driver miscompiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from ..deploy.build import optimize
from ..deploy.judge import CompiledKernel, difference
from ..deploy.link import linked
from ..deploy.this_machine import ThisMachine, model_on
from ..deploy.weights import Weight
from ..executor.job_devices import Device
from ..ir.kernel import CONSTANTS, emit, parse
from ..ir.storage import stored_as
from ..ir.texels import is_texture
from ..pipeline import Options
from ..target import host_target
from ..tune.tasks import Task, tasks_of
from ..tune.tunable_kernel import workload


@dataclass(frozen=True)
class Layer:
    """One kernel, compiled for the device, with random arguments and this machine's CPU's results for them.

    Attributes
    ----------
    kernels : tuple of str
        The kernel's names in the model.
    library : Path
    weights, inputs : sequence of Weight
    want : sequence of numpy.ndarray
    rounds_to : str
        As in `deploy.judge.CompiledKernel`.
    """

    kernels: tuple[str, ...]
    library: Path
    weights: Sequence[Weight]
    inputs: Sequence[Weight]
    want: Sequence[np.ndarray]
    rounds_to: str = ""


def layers_of(
    mod: tvm.IRModule,
    target: Target,
    options: Options,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[Layer]:
    """Compile the kernels of a model one by one.

    Parameters
    ----------
    mod : tvm.IRModule
        An imported model.
    folder : Path
        The folder for their libraries.
    progress : callable
        Called after each kernel with the number done and the total.
    """
    options = replace(options, winograd=False)  # so that each kernel is a task
    with target:
        tasks = tasks_of(optimize(mod, options=options), target, options)
    found = []
    for number, task in enumerate(tasks, start=1):
        (folder / str(number)).mkdir()
        found.append(_layer(task, target, folder / str(number)))
        progress(number, len(tasks))
    return found


def _layer(task: Task, target: Target, folder: Path) -> Layer:
    there = CompiledKernel(task.mod, target, None)
    here = CompiledKernel(workload(_in_buffers(task.mod["main"])), host_target(), None)
    want = ThisMachine(host_target()).run(lambda device: here.on(device).outputs())
    return Layer(
        task.names, Path(linked(there.code, target, str(folder))), there.weights, there.inputs, want, there.rounds_to
    )


def _in_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the kernel with plain buffers of the same shapes instead of textures, which a CPU lacks."""
    textures = [param for param in func.params if is_texture(param)]
    if not textures:
        return func
    kernel = parse(func)
    for buffer in textures:
        plain = tirx.decl_buffer(list(buffer.shape), buffer.dtype, buffer.name)
        kernel = stored_as(kernel, buffer, plain, list)
    constants = (func.attrs or {}).get(CONSTANTS)
    plain = emit(kernel)
    return plain if constants is None else plain.with_attr(CONSTANTS, constants)


def check_layers(device: Device, layers: Sequence[Layer]) -> list[dict]:
    """Run the kernels on a device.

    Returns
    -------
    list of dict
        ``kernels``: names; ``wrong``: a description of wrong outputs, empty if they are right.
    """
    found = []
    for layer in layers:
        got = model_on(device, layer.library, layer.weights, layer.inputs).outputs()
        found.append({"kernels": list(layer.kernels), "wrong": difference(got, layer.want, layer.rounds_to)})
    return found

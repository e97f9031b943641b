# SPDX-License-Identifier: Apache-2.0
"""Each kernel of a model by itself, on a device and on this machine's CPU: which of them a driver gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from ..deploy.build import optimize, to_numpy
from ..deploy.judge import CompiledKernel, difference
from ..deploy.link import link_for
from ..deploy.weights import Machine, Weight
from ..ir.kernel import emit, parse
from ..ir.storage import stored_as
from ..ir.texels import is_texture
from ..pipeline import Options
from ..target import has_textures, host_target
from ..tune.kernel import CONSTANTS, workload
from ..tune.tasks import Task, tasks_of
from .deployed import kind_of
from .session import Session


@dataclass(frozen=True)
class Layer:
    """One kernel, compiled for the device, with random arguments and what this machine's CPU makes of them.

    Attributes
    ----------
    kernels : tuple of str
        Its names in the model.
    library : Path
    weights, inputs : sequence of Weight
    want : sequence of numpy.ndarray
    """

    kernels: tuple[str, ...]
    library: Path
    weights: Sequence[Weight]
    inputs: Sequence[Weight]
    want: Sequence[np.ndarray]


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
        Where their libraries go.
    progress : callable
        Is told after each how many are done, and of how many.
    """
    with target:
        tasks = tasks_of(optimize(mod, options), target)
    found = []
    for number, task in enumerate(tasks, start=1):
        place = folder / str(number)
        place.mkdir()
        found.append(_layer(task, target, place))
        progress(number, len(tasks))
    return found


def _layer(task: Task, target: Target, place: Path) -> Layer:
    link, there = link_for(target), CompiledKernel(task.mod, target, None)
    link.write(there.code, place)
    here = CompiledKernel(workload(_in_buffers(task.mod["main"])), host_target(), None)
    machine = Machine(here.code, here.weights)
    want = to_numpy(machine["main"](*(each.on(machine.device) for each in here.inputs)))
    # Names in a session's folder are one for all, and TVM goes by their ending.
    library = place / f"kernel{place.name}{Path(link.file).suffix}"
    (place / link.file).rename(library)
    return Layer(task.names, library, there.weights, there.inputs, want)


def _in_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with plain buffers of the same shapes where it has textures, which a CPU knows nothing of."""
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


def check_layers(session: Session, target: Target, layers: Sequence[Layer]) -> list[dict]:
    """Run the kernels on the device of a session.

    Returns
    -------
    list of dict
        ``kernels``: names; ``wrong``: what is wrong with its outputs, empty if nothing is.
    """
    device, found = session.device(kind_of(target)), []
    for layer in layers:
        code = session.load(session.upload(layer.library))
        machine = Machine(code, layer.weights, device, textures=has_textures(target))
        got = to_numpy(machine["main"](*(each.on(device) for each in layer.inputs)))
        found.append({"kernels": list(layer.kernels), "wrong": difference(got, layer.want)})
    return found

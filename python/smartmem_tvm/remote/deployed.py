# SPDX-License-Identifier: Apache-2.0
"""A compiled folder on a device of a session: uploaded, with its weights in the device's memory."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from tvm.target import Target

from ..deploy.alone import PREFIX
from ..deploy.build import to_numpy
from ..deploy.export import EXPLANATION, WEIGHTS, check_files, read_manifest
from ..deploy.weights import Machine, map_weights
from ..errors import UserError
from ..schedule.gpu_launch import has_textures
from ..tune.parameters import Parameter
from .session import Session

_READING = 2e-3  # seconds of launches that one reading of a kernel's time takes at least
_READINGS = 7


def kind_of(target: Target) -> str:
    """What a session calls the device that runs what is compiled for a target."""
    return "cpu" if target.kind.name == "llvm" else target.kind.name


class Deployed:
    """A compiled model on a device.

    Parameters
    ----------
    session : Session
    folder : Path
        What `deploy.export.save` wrote.

    Attributes
    ----------
    manifest, explanation : dict
        The folder's.

    Raises
    ------
    UserError
        If the folder holds no compiled model or a changed one, or the device is none that it was compiled for.
    """

    def __init__(self, session: Session, folder: Path):
        self.manifest = read_manifest(folder, elsewhere=True)
        check_files(folder, self.manifest)
        self.explanation = json.loads((folder / EXPLANATION).read_text(encoding="utf-8"))
        target = Target(self.manifest["target"])
        _check_machine(self.manifest, session)
        self.device = session.device(kind_of(target))
        code = session.load(session.upload(folder / self.manifest["library"]))
        weights = map_weights(folder / WEIGHTS, self.manifest["weights"])
        self.machine = Machine(code, weights, self.device, textures=has_textures(target))

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of one inference."""
        return to_numpy(self.machine["main"](*self.machine.tensors(arrays)))

    def seconds(self, arrays: Sequence[np.ndarray], warm_up: int, runs: int) -> list[float]:
        """What each of some inferences took there, one after the other; no time of the network is in it."""
        tensors = self.machine.tensors(arrays)
        return self.machine.timed(tensors, warm_up + runs)[warm_up:]

    def kernel_seconds(self) -> dict[str, float]:
        """Kernel -> median seconds of a launch by itself, on random data."""
        return {each["kernel"]: self._launch_seconds(each) for each in self.explanation["launched"]}

    def _launch_seconds(self, kernel: dict) -> float:
        generator = np.random.default_rng(0)
        found = [Parameter(dtype, tuple(shape), scope) for dtype, shape, scope in kernel["parameters"]]
        arguments = [each.on(self.device, generator) for each in found]
        function = PREFIX + kernel["kernel"]
        once = median(self.machine.timed(arguments, 3, function))
        return median(self.machine.timed(arguments, _READINGS, function, math.ceil(_READING / max(once, 1e-7))))


def _check_machine(manifest: dict, session: Session) -> None:
    """Refuse a library for another kind of CPU, which the server could not even open."""
    there = session.about.get("machine")
    compiled = manifest["host"].split("-")[0] or platform.machine()
    if there and _same(there) != _same(compiled):
        raise UserError(
            f"The model was compiled for {compiled}, and device {session.address} (key {session.key}) is {there}: "
            f"compile it for that CPU, or use another key."
        )


def _same(machine: str) -> str:
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine.lower(), machine.lower())

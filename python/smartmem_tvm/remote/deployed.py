# SPDX-License-Identifier: Apache-2.0
"""Run a compiled folder on a device of a session: upload it and keep its weights in the device's memory."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm

from .. import json_data
from ..deploy.compilers import OBJECTS, remedy
from ..deploy.inference_session import to_numpy
from ..deploy.kernel_functions import PREFIX
from ..deploy.manifest import (
    EXPLANATION,
    WEIGHTS,
    cache_plan,
    check_files,
    read_manifest,
    require_one_size,
    require_whole_weights,
)
from ..deploy.weights import Machine, map_weights
from ..errors import UserError, reason_of
from ..executor.readings import MODEL, evaluator_clock, one_by_one
from ..ir.public_functions import MAIN
from ..target import device_kind, has_textures, host_triple
from ..tune.parameters import arguments, as_parameters
from .session import Session


class Deployed:
    """A compiled model on a device.

    Parameters
    ----------
    session : Session
    folder : Path
        A folder of `deploy.export.save`.
    function : str
        The function to run: of a model of several sizes, that of one of them.

    Attributes
    ----------
    manifest, explanation : dict
        The contents of these files of the folder.
    launched : list of dict
        The kernels that an inference launches, see `deploy.signatures.launched`.

    Raises
    ------
    UserError
        If the folder holds no compiled model or a modified one, or the model was compiled for another device.
    """

    def __init__(self, session: Session, folder: Path, function: str = MAIN):
        self.manifest = read_manifest(folder, elsewhere=True, several=True)
        if function == MAIN:
            require_one_size(folder, self.manifest)
        require_whole_weights(folder, self.manifest)
        check_files(folder, self.manifest)
        with json_data.as_written(str(folder / EXPLANATION), "compile the model again"):
            self.explanation = json_data.read(folder / EXPLANATION)
            self._describe(function)
        target = tvm.target.Target(self.manifest["target"])
        check_machine(self.manifest["host"], session)
        self.device, self._cpu = session.device(device_kind(target)), session.device("cpu")
        code = load_library(session, folder / self.manifest["library"], target)
        weights = map_weights(folder / WEIGHTS, self.manifest["weights"])
        plan, textures = cache_plan(self.manifest), has_textures(target)
        functions = [each["function"] for each in self.manifest.get("sizes", ())] or [MAIN]
        self.machine = Machine(code, weights, self.device, textures, functions, plan)
        self._session = session

    def _describe(self, function: str) -> None:
        described = next((each for each in self.manifest.get("sizes", ()) if each["function"] == function), None)
        self.function = function
        self.launched = self.explanation["launched_by_size"][function] if described else self.explanation["launched"]
        self._names = [each["name"] for each in (described or self.manifest)["inputs"]]
        self._count = len((described or self.manifest)["outputs"])

    def at(self, function: str) -> Deployed:
        """Return another function of the model, with the same weights in the device's memory."""
        other = copy(self)
        other._describe(function)
        return other

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of one inference; caches get their arrays before, and are outputs."""
        result = self.machine.whole(self.function)(*self._tensors(arrays))
        if isinstance(result, tvm.runtime.Tensor):
            return [result.numpy()]
        item, caches = self._session.function("vm.builtin.tuple_getitem"), self.machine.caches
        numbers = list(range(self._count))
        if caches is None:
            return to_numpy([item(result, number) for number in numbers])
        # A cache in a result is the argument of the call, which TVM's protocol returns from no tuple.
        outputs = to_numpy([item(result, number) for number in caches.plan.outputs(self.function, numbers)])
        return caches.whole(self.function, outputs)

    def _tensors(self, arrays: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
        """Return the inputs on the device, and put the caches back.

        A row is written before it is read, so that more runs on the same inputs find the same rows and write the same.
        """
        if self.machine.caches is None:
            return self.machine.tensors(arrays)
        given = self.machine.caches.put_back(dict(zip(self._names, arrays, strict=True)))
        return self.machine.tensors(list(given.values()))

    def seconds(self, arrays: Sequence[np.ndarray], warm_up: int, runs: int) -> list[float]:
        """Return the seconds of each of some inferences on the device, without any time of the connection."""
        tensors = self._tensors(arrays)
        return self.machine.timed(tensors, warm_up + runs, self.function)[warm_up:]

    def host_seconds(self, arrays: Sequence[np.ndarray], runs: int) -> float:
        """Return the median seconds until a call of an inference returns there; a GPU may still be working then."""
        tensors = self._tensors(arrays)
        clock = self.machine.time_evaluator(self.function, self._cpu, number=1, repeat=1)
        found = []
        for _ in range(runs):
            found += clock(*tensors).results
            self.device.sync()  # a full queue would delay the next call
        return median(found)

    def kernel_seconds(self) -> dict[str, float]:
        """Return kernel -> median seconds of a single launch on random data."""
        return {each["kernel"]: self._launch_seconds(each) for each in self.launched}

    def _launch_seconds(self, kernel: dict) -> float:
        tensors, function = arguments(as_parameters(kernel["parameters"]), self.device), PREFIX + kernel["kernel"]
        return median(one_by_one(evaluator_clock(self.machine, function, self.device, [tensors]), MODEL))


def load_library(session: Session, file: Path, target: tvm.target.Target, name: str | None = None) -> Any:
    """Upload a library of `deploy.link` and load it.

    Parameters
    ----------
    target : tvm.target.Target
        The target that it was compiled for.
    name : str, optional
        Its name on the server.

    Raises
    ------
    UserError
        If it is an archive of objects and the server has no linker.
    """
    sent = session.upload(file, name)
    try:
        return session.load(sent)
    except Exception as error:
        if isinstance(error, UserError) or not sent.endswith(Path(OBJECTS).suffix):
            raise
        raise UserError(
            f"Device {session.address} cannot load object files ({reason_of(error).rstrip('.')}): have kernels linked "
            f"here, by {remedy(host_triple(target))}."
        ) from error


def check_machine(triple: str, session: Session) -> None:
    """Refuse code for another kind of CPU, which the server could not load.

    Parameters
    ----------
    triple : str
        The triple of the code, empty for this machine's kind (`deploy.link.Link.triple`).

    Raises
    ------
    UserError
    """
    there = session.about.get("machine")
    compiled = triple.split("-")[0] or platform.machine()
    if there and _same(there) != _same(compiled):
        raise UserError(
            f"Code compiled for {compiled} does not run on device {session.address} (key {session.key}), which is "
            f"{there}: name a target for that CPU, or use another key."
        )


def _same(machine: str) -> str:
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine.lower(), machine.lower())

# SPDX-License-Identifier: Apache-2.0
"""Facts about the devices of a key for a tuner: their number, their names, and the times of a model's kernels."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import tvm

from ..deploy.compiled import Compiled
from ..deploy.export import save
from ..deploy.link import link_for
from ..deploy.signatures import launched
from ..target import device_kind
from .deployed import Deployed, check_machine
from .inspect_devices import inspect
from .keys import tracker_state
from .session import Session
from .tracked_devices import RemoteDevice, TrackedDevices
from .wire import parse_address

_LOOK, _LIMIT = 120.0, 600.0  # seconds for the inspection of a device, and for all kernels of a model


@dataclass(frozen=True)
class Found:
    """The devices of a key.

    Attributes
    ----------
    count : int
    name, driver : str
        Name and driver of a free device; the others are assumed to be equal.
    threads : int
        Threads of kernels on a CPU.
    """

    count: int
    name: str
    driver: str
    threads: int


def find(tracker: str, key: str, timeout: float, target: tvm.target.Target, threads: int | None = None) -> Found:
    """Inspect the devices of a key.

    Parameters
    ----------
    threads : int, optional
        Threads for kernels on a CPU; by default the server decides.

    Raises
    ------
    UserError
        If there is none, or the inspected device does not run code for the target or has fewer threads.
    """
    kind = device_kind(target)

    def look(session: Session) -> Found:
        check_machine(link_for(target).triple, session)
        session.device(kind)
        if threads is not None and kind == "cpu":
            session.use_threads(threads)
        device = next(each for each in inspect(session)["devices"] if each["kind"] == kind)
        state = tracker_state(parse_address(tracker)).get(key)  # a restarted tracker may not list it yet
        count = max(1, state.total if state else 0)
        return Found(count, device.get("name", kind), str(device.get("driver") or ""), session.threads())

    return TrackedDevices(tracker, key, timeout=timeout, session_limit=_LOOK).with_session(look)


def kernel_seconds(compiled: Compiled, devices: TrackedDevices) -> dict[str, float]:
    """Return kernel -> median seconds of a single launch, for a compiled model."""
    explanation = {"launched": launched(compiled.graph, compiled.signatures)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(replace(compiled, weights=[]), folder, {"inputs": [], "outputs": []}, explanation)

        def measure(device: RemoteDevice) -> dict[str, float]:
            with device.session.limit(_LIMIT, "the kernels of a model"):
                return Deployed(device.session, folder).kernel_seconds()

        return devices.run(measure, devices.limits.verdict)

# SPDX-License-Identifier: Apache-2.0
"""What a tuner has to know of the devices of a key: how many, what they are, and how fast a model is on them."""

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
from .devices import inspect
from .keys import tracker_state
from .session import Session
from .tracked_devices import RemoteDevice, TrackedDevices
from .wire import parse_address

_LOOK, _LIMIT = 120.0, 600.0  # seconds for a look at a device, and for all kernels of a model


@dataclass(frozen=True)
class Found:
    """The devices of a key.

    Attributes
    ----------
    count : int
    name, driver : str
        Of one that was free; the others are taken to be like it.
    threads : int
        That kernels run on if it is a CPU.
    """

    count: int
    name: str
    driver: str
    threads: int


def find(tracker: str, key: str, timeout: float, target: tvm.target.Target, threads: int | None = None) -> Found:
    """Look at the devices of a key.

    Parameters
    ----------
    threads : int, optional
        That a CPU's kernels shall run on; by default as the server decides.

    Raises
    ------
    UserError
        If there is none, or the one that was looked at does not run code for the target, or not on so many threads.
    """
    kind = device_kind(target)

    def look(session: Session) -> Found:
        check_machine(link_for(target).triple, session)
        session.device(kind)
        if threads is not None and kind == "cpu":
            session.use_threads(threads)
        device = next(each for each in inspect(session)["devices"] if each["kind"] == kind)
        state = tracker_state(parse_address(tracker)).get(key)  # a tracker that was restarted has yet to hear of it
        count = max(1, state.total if state else 0)
        return Found(count, device.get("name", kind), str(device.get("driver") or ""), session.threads())

    return TrackedDevices(tracker, key, timeout=timeout, session_limit=_LOOK).with_session(look)


def kernel_seconds(compiled: Compiled, devices: TrackedDevices) -> dict[str, float]:
    """Kernel -> median seconds of a launch by itself, of a model as it is compiled."""
    explanation = {"launched": launched(compiled.graph, compiled.signatures)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(replace(compiled, weights=[]), folder, {"inputs": [], "outputs": []}, explanation)

        def measure(device: RemoteDevice) -> dict[str, float]:
            with device.session.limit(_LIMIT, "the kernels of a model"):
                return Deployed(device.session, folder).kernel_seconds()

        return devices.run(measure, devices.limits.verdict)

# SPDX-License-Identifier: Apache-2.0
"""What the devices of a tracker are, and which row of `tables.targets` describes each."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from ..errors import UserError
from ..tables.targets import BY_KIND, TARGETS, Row
from . import about
from .keys import tracker_state
from .session import Session, request
from .wire import parse_address

_WAIT_SECONDS = 10.0
_LOOK_SECONDS = 60.0  # a driver may take its time the first time it is asked
# Code generators by the kind of device that runs their code.
_GENERATORS = {"cpu": "llvm"}
# What a driver tells of a device, as a row has it.
_FIELDS = {
    "image_width": "image2d_width",
    "image_height": "image2d_height",
    "image_layers": "image_array_depth",
    "half": "half",
    "work_group": "max_work_group_size",
    "local_bytes": "local_bytes",
    "cores": "compute_units",
}


def tracker_devices(tracker: str) -> dict[str, dict[str, Any]]:
    """Each key with its counts, and what each device is that is free now.

    Parameters
    ----------
    tracker : str
        ``host:port``.

    Returns
    -------
    dict
        By key what `keys.KeyState.counts` has, and ``found``: a list of what `inspect` returns.

    Raises
    ------
    UserError
        If no tracker answers.
    """
    keys = tracker_state(parse_address(tracker))
    return {key: {**state.counts, "found": _free(tracker, key, state.free)} for key, state in keys.items()}


def _free(tracker: str, key: str, count: int) -> list[dict[str, Any]]:
    """All devices of a key that are free; each is kept until the last is asked, so that each is another one."""
    found = []
    with contextlib.ExitStack() as sessions:
        for _ in range(count):
            try:
                session = request(tracker, key, _WAIT_SECONDS, limit=_LOOK_SECONDS, any_version=True)
                found.append(inspect(sessions.enter_context(session)))
            except UserError as error:
                found.append({"address": getattr(error, "address", ""), "problem": str(error), "devices": []})
    return found


def inspect(session: Session) -> dict[str, Any]:
    """What a server is: ``address``, what it tells of itself, ``kinds`` it can run, and ``devices`` as `fitted`."""
    tell = session.function(about.DEVICES, missing_ok=True)
    kinds = session.kinds()
    with session.limit(_LOOK_SECONDS, "a look at its devices"):
        if tell is not None:
            devices = about.parse_devices(str(tell()))
        else:
            remote = session.remote.device
            devices = [each for kind in kinds for each in about.tvm_devices(kind, lambda i, k=kind: remote(k, i))]
    return {"address": session.address, **session.about, "kinds": kinds, "devices": list(map(fitted, devices))}


def fitted(device: dict[str, Any]) -> dict[str, Any]:
    """A device with the row that fits it.

    Returns
    -------
    dict
        The device's facts, and ``compiler``: the version of the driver's compiler, where it tells; ``row``: the name of
        the row, None if there is none; ``exact``: whether the row is for this very model, and not for its kind;
        ``measured``: fields of a row that the driver tells otherwise.
    """
    row, exact = row_for(device["kind"], device.get("name", ""))
    told = {field: device[name] for field, name in _FIELDS.items() if name in device}
    measured = {field: value for field, value in told.items() if row is None or getattr(row, field) != value}
    compiler = re.search(r"[Cc]ompiler\s+(\S+)", f"{device.get('driver', '')} {device.get('version', '')}")
    fit = {"row": row.name if row else None, "exact": exact, "measured": measured}
    return {**device, "compiler": compiler[1] if compiler else "", **fit}


def row_for(kind: str, name: str) -> tuple[Row | None, bool]:
    """The row for a device's own name, otherwise the one for its kind, and whether it is the former.

    A row is for a device if every word of its name is one of the device's: ``adreno-740`` for QUALCOMM Adreno(TM) 740.
    """
    generator, words = _GENERATORS.get(kind, kind), _words(name)
    models = [row for row in TARGETS.values() if row not in BY_KIND.values() or row.kind == "cuda"]
    exact = [row for row in models if row.kind == generator and _words(row.name) <= words]
    return (exact[0], True) if exact else (BY_KIND.get(generator), False)


def row_text(device: dict[str, Any]) -> str:
    """The row that the table would have for a device, as far as its driver tells; for a device from `fitted`."""
    name = "-".join(re.findall(r"[a-z0-9]+", device.get("name", "").lower())) or device["kind"]
    given = "".join(f", {field}={value!r}" for field, value in device["measured"].items())
    return f'Row("{name}", "{_GENERATORS.get(device["kind"], device["kind"])}"{given})'


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+\d+|[a-z]+|\d+", name.lower()))

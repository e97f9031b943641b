# SPDX-License-Identifier: Apache-2.0
"""Inspect the devices of a tracker, and find the row of `tables.targets` for each."""

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
_LOOK_SECONDS = 60.0  # the first query of a driver may be slow
# Kind of device -> code generator.
_GENERATORS = {"cpu": "llvm"}
# Field of a row -> the driver's fact.
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
    """Return each key with its counts, and the facts of each free device.

    Parameters
    ----------
    tracker : str
        ``host:port``.

    Returns
    -------
    dict
        Key -> the fields of `keys.KeyState.counts`, and ``found``: a list of results of `inspect`.

    Raises
    ------
    UserError
        If no tracker answers.
    """
    keys = tracker_state(parse_address(tracker))
    return {key: {**state.counts, "found": _free(tracker, key, state.free)} for key, state in keys.items()}


def _free(tracker: str, key: str, count: int) -> list[dict[str, Any]]:
    """Inspect all free devices of a key; each session stays open until the last, so that no device comes twice."""
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
    """Return a server's ``address``, its facts, the ``kinds`` that it can run, and its ``devices`` from `fitted`."""
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
    """Return a device with the row that fits it.

    Returns
    -------
    dict
        The device's facts, and ``compiler``: the version of the driver's compiler, if known; ``row``: the name of the
        row, None if there is none; ``exact``: whether the row is for this model and not for its kind; ``measured``:
        fields of a row for which the driver has other values.
    """
    row, exact = row_for(device["kind"], device.get("name", ""))
    told = {field: device[name] for field, name in _FIELDS.items() if name in device}
    measured = {field: value for field, value in told.items() if row is None or getattr(row, field) != value}
    compiler = re.search(r"[Cc]ompiler\s+(\S+)", f"{device.get('driver', '')} {device.get('version', '')}")
    fit = {"row": row.name if row else None, "exact": exact, "measured": measured}
    return {**device, "compiler": compiler[1] if compiler else "", **fit}


def row_for(kind: str, name: str) -> tuple[Row | None, bool]:
    """Return the row for a device's own name, otherwise that for its kind, and whether it is the former.

    A row is for a device if every word of its name is one of the device's: ``adreno-740`` for QUALCOMM Adreno(TM) 740.
    """
    generator, words = _GENERATORS.get(kind, kind), _words(name)
    models = [row for row in TARGETS.values() if row not in BY_KIND.values() or row.kind == "cuda"]
    exact = [row for row in models if row.kind == generator and _words(row.name) <= words]
    return (exact[0], True) if exact else (BY_KIND.get(generator), False)


def row_text(device: dict[str, Any]) -> str:
    """Return a row of the table for a device from `fitted`, as text with the facts that its driver provides."""
    name = "-".join(re.findall(r"[a-z0-9]+", device.get("name", "").lower())) or device["kind"]
    given = "".join(f", {field}={value!r}" for field, value in device["measured"].items())
    return f'Row("{name}", "{_GENERATORS.get(device["kind"], device["kind"])}"{given})'


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+\d+|[a-z]+|\d+", name.lower()))

# SPDX-License-Identifier: Apache-2.0
"""Borrow a device from a tracker: wait for one, or report why there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..errors import UserError
from .keys import ANSWER_SECONDS, KeyState, states, unreachable
from .wire import Address, Code, Connection, address_text

_ABSENT_SECONDS = 3.0  # time for a tracker to restart, and for servers to register again
_PAUSE_SECONDS = 0.1
_NOTHING = KeyState((), 0, 0)


class DeviceLost(UserError):
    """A device no longer answers, or not in time: another device, or a later try, may succeed.

    Attributes
    ----------
    address : str
        The address of its server.
    """

    def __init__(self, message: str, address: str):
        super().__init__(message)
        self.address = address


class DeviceBusy(UserError):
    """All devices of a key were in use until the time limit."""


def borrow(tracker: Address, key: str, end: float, avoid: Mapping[str, float]) -> tuple[Address, str]:
    """Return the address of a free device and the match key that its server requires.

    Parameters
    ----------
    end : float
        Deadline of waiting, on the clock of `time.monotonic`.
    avoid : mapping of str to float
        Address -> the time until which it is not used.

    Raises
    ------
    UserError
        If no tracker answers, or no device has the key.
    DeviceBusy
        If no device was free in time.
    """
    start = time.monotonic()
    patience = start + min(_ABSENT_SECONDS, max(0.0, end - start))
    while True:
        try:
            with Connection(tracker, ANSWER_SECONDS) as link:
                known = states(link)
                if (state := known.get(key, _NOTHING)).total:
                    patience = time.monotonic() + _ABSENT_SECONDS
                    if found := _wait(link, tracker, key, state, end, avoid):
                        return found
                    if time.monotonic() >= end:
                        raise _busy(tracker, key, state, time.monotonic() - start, avoid)
                problem = _unknown(tracker, key, known)
        except OSError as error:
            problem = unreachable(tracker, error)
            problem.__cause__ = error
        if time.monotonic() >= patience:
            raise problem
        time.sleep(_PAUSE_SECONDS)


def _wait(
    link: Connection, tracker: Address, key: str, state: KeyState, end: float, avoid: Mapping[str, float]
) -> tuple[Address, str] | None:
    """Return the first device that is not avoided; None at the deadline or if the key has no device left."""
    # With a request open, the tracker would give us a device that we still avoid, and block it for others.
    wanted_from = min(avoid.get(server, 0.0) for server in state.servers)
    time.sleep(max(0.0, min(wanted_from, end) - time.monotonic()))
    while time.monotonic() < end:
        link.send(Code.REQUEST, key, "", 1)
        if not _is_given(link, tracker, key, end):
            return None
        code, given = link.answer()
        if code != Code.SUCCESS:
            raise ConnectionError(f"the tracker refuses: {given}")
        host, port, match_key = given
        if avoid.get(address_text((host, port)), 0.0) <= time.monotonic():
            return (host, port), match_key
        # A device that was given and not used is offered again by its server after a while.
    return None


def _is_given(link: Connection, tracker: Address, key: str, end: float) -> bool:
    """Whether the tracker answers in time; it does not answer once the last device of the key is gone."""
    while (left := end - time.monotonic()) > 0:
        if link.is_answered(min(left, _ABSENT_SECONDS)):
            return True
        with Connection(tracker, ANSWER_SECONDS) as other:
            if not states(other).get(key, _NOTHING).total:
                return False
    return False


def _busy(tracker: Address, key: str, state: KeyState, seconds: float, avoid: Mapping[str, float]) -> DeviceBusy:
    devices = "The device" if state.total == 1 else f"All {state.total} devices"
    alone = sum(avoid.get(server, 0.0) > time.monotonic() for server in state.servers)
    cooling = f", {alone} left alone after an error" if alone else ""
    return DeviceBusy(
        f"{devices} of key {key} at tracker {address_text(tracker)} did not get free within {seconds:.1f} s "
        f"({state.busy} busy, {state.pending} clients before this one{cooling}): wait longer, or start another server "
        "with this key."
    )


def _unknown(tracker: Address, key: str, known: Mapping[str, KeyState]) -> UserError:
    keys = ", ".join(name for name, state in known.items() if state.total)
    where = address_text(tracker)
    remedy = f"use one of {keys}" if keys else f"start `smartmem rpc server --tracker {where} --key {key}`"
    return UserError(f"No device at tracker {where} has the key {key}: {remedy}.")

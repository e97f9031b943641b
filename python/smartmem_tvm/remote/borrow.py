# SPDX-License-Identifier: Apache-2.0
"""A client's conversation with a tracker: waits for a device, and says why there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..errors import UserError
from .keys import ANSWER_SECONDS, KeyState, states, unreachable
from .wire import Address, Code, Connection, address_text

_ABSENT_SECONDS = 3.0  # for a tracker that was restarted, and for servers to come back to it
_PAUSE_SECONDS = 0.1
_NOTHING = KeyState((), 0, 0)


class DeviceLost(UserError):
    """A device that does not answer any more, or not in time: another one may, or the same one later.

    Attributes
    ----------
    address : str
        Its server's.
    """

    def __init__(self, message: str, address: str):
        super().__init__(message)
        self.address = address


class DeviceBusy(UserError):
    """All devices of a key were in use for as long as one was willing to wait."""


def borrow(tracker: Address, key: str, end: float, avoid: Mapping[str, float]) -> tuple[Address, str]:
    """Where a free device is, and the match key that its server wants to be shown.

    Parameters
    ----------
    end : float
        Until when to wait for one, as `time.monotonic` counts.
    avoid : mapping of str to float
        Addresses that are not wanted until that time.

    Raises
    ------
    UserError
        If no tracker answers, or no device has the key.
    DeviceBusy
        If none was free in time.
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
    """The first device that the tracker has for us and that is wanted; None if there is none in time or any more."""
    # With a request open, a device that nobody wants yet would be given to us and to nobody else.
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
        # A device that is given and not used offers itself again after a while.
    return None


def _is_given(link: Connection, tracker: Address, key: str, end: float) -> bool:
    """Whether the tracker answers in time; it would not do so when the last device of the key is gone."""
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

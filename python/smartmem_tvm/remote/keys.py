# SPDX-License-Identifier: Apache-2.0
"""Query a tracker for the state of its devices."""

from __future__ import annotations

from dataclasses import dataclass

from .. import json_data
from ..errors import UserError
from .wire import Address, Code, Connection, address_text

ANSWER_SECONDS = 5.0
_QUEUE = {"free": json_data.is_size, "pending": json_data.is_size}
_SUMMARY = {
    "server_info": [{"key": str, "addr": lambda address: json_data.fits(address, list) and len(address) == 2}],
    "queue_info": lambda queues: json_data.fits(queues, dict) and json_data.fits([*queues.values()], [_QUEUE]),
}


@dataclass(frozen=True)
class KeyState:
    """The devices of one key.

    Attributes
    ----------
    servers : tuple of str
        The address of each server.
    free, pending : int
        Unused devices, and waiting clients.
    """

    servers: tuple[str, ...]
    free: int
    pending: int

    @property
    def total(self) -> int:
        """Return the number of devices."""
        return len(self.servers)

    @property
    def busy(self) -> int:
        """Return the number of devices in use."""
        return max(0, self.total - self.free)

    @property
    def counts(self) -> dict[str, object]:
        """Return the state as plain data for JSON."""
        found = {"devices": self.total, "free": self.free, "busy": self.busy, "pending": self.pending}
        return {**found, "servers": list(self.servers)}


def tracker_state(tracker: Address) -> dict[str, KeyState]:
    """Return the state of each key that has a device or a waiting client.

    Raises
    ------
    UserError
        If no tracker answers.
    """
    try:
        with Connection(tracker, ANSWER_SECONDS) as link:
            return states(link)
    except OSError as error:
        raise unreachable(tracker, error) from error


def unreachable(tracker: Address, error: OSError) -> UserError:
    """Return the error for a tracker that does not answer."""
    return UserError(
        f"No tracker answers at {address_text(tracker)} ({error}): start one with `smartmem rpc tracker --port "
        f"{tracker[1]}`, or correct --tracker."
    )


def states(link: Connection) -> dict[str, KeyState]:
    """Return the same over an open connection; raise OSError if it breaks."""
    answer = link.ask(Code.SUMMARY)
    if not isinstance(answer, list) or not answer or answer[0] != Code.SUCCESS:
        raise ConnectionError(f"the tracker refuses: {answer}")
    if len(answer) != 2 or not json_data.fits(answer[1], _SUMMARY):
        raise ConnectionError("the tracker's summary is not one of TVM's")
    servers: dict[str, list[str]] = {}
    for each in answer[1]["server_info"]:
        host, port = each["addr"]
        servers.setdefault(each["key"].removeprefix("server:"), []).append(address_text((str(host), port)))
    queues = answer[1]["queue_info"]
    found = {}
    for key in sorted({*servers, *(key for key, queue in queues.items() if queue["pending"])}):
        queue = queues.get(key, {"free": 0, "pending": 0})
        found[key] = KeyState(tuple(sorted(servers.get(key, ()))), queue["free"], queue["pending"])
    return found

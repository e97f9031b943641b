# SPDX-License-Identifier: Apache-2.0
"""A server's connection to its tracker: offer the device, and offer it again if the tracker or a client was lost."""

from __future__ import annotations

import logging
import secrets

from .wire import Address, Code, Connection, address_text

RETRY_SECONDS = 0.5
_TEND_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_UNUSED_SECONDS = 6.0

_log = logging.getLogger(__name__)


class Registration:
    """The registration of a server at a tracker.

    A device is offered under a match key that is valid for one connection: the client gets it from the tracker and
    sends it to the server.

    Parameters
    ----------
    tracker : tuple
        Host and port.
    key : str
        The name under which clients ask for devices of this kind.
    host : str or None
        The server's address for clients; None for the address that the tracker sees.
    port : int
        The server's port.
    """

    def __init__(self, tracker: Address, key: str, host: str | None, port: int):
        self.tracker, self.key, self.host, self.port = tracker, key, host, port
        self.match_key = ""
        self.link: Connection | None = None
        self._due = 0.0
        self._taken_at: float | None = None
        self._told = False

    def update(self, now: float, free: bool) -> float:
        """Do the steps that are due and return the time of the next call; never raise for an absent tracker."""
        if now >= self._due:
            try:
                if self.link is None:
                    self._connect(free)
                else:
                    self._look_after(now, free)
                self._due = now + _TEND_SECONDS
            except OSError as error:
                self.lose(error)
                self._due = now + RETRY_SECONDS
        return self._due

    def offer(self) -> None:
        """Offer the device as free, with a new match key."""
        self.match_key, self._taken_at = f"{self.key}:{secrets.token_hex(8)}", None
        if self.link is not None:
            try:
                self._put()
            except OSError as error:
                self.lose(error)

    def lose(self, reason: object) -> None:
        """Close the connection, and let `update` connect again."""
        if self.link is not None:
            self.link.close()
        self.link, self._due = None, 0.0
        if not self._told:
            _log.warning("No tracker at %s (%s); trying again until there is.", address_text(self.tracker), reason)
        self._told = True

    def _connect(self, free: bool) -> None:
        self.link = Connection(self.tracker, _ANSWER_SECONDS)
        facts = {"key": f"server:{self.key}", "addr": [self.host, self.port]}
        _expect_success(self.link.ask(Code.UPDATE_INFO, facts))
        _log.info("Registered with the tracker at %s as %s.", address_text(self.tracker), self.key)
        self._told = False
        if free:
            # Match keys that an earlier tracker gave to clients are no longer valid.
            self.match_key, self._taken_at = f"{self.key}:{secrets.token_hex(8)}", None
            self._put()

    def _put(self) -> None:
        _expect_success(self.link.ask(Code.PUT, self.key, [self.port, self.match_key], self.host))

    def _look_after(self, now: float, free: bool) -> None:
        """Offer the device again if a client got its match key and does not connect."""
        waiting = self.link.ask(Code.PENDING)
        if not isinstance(waiting, list):
            raise ConnectionError(f"the tracker refuses: {waiting}")
        if not free or self.match_key in waiting:
            self._taken_at = None
        elif self._taken_at is None:
            self._taken_at = now
        elif now - self._taken_at >= _UNUSED_SECONDS:
            _log.info("A client asked for the device and did not come.")
            self.offer()


def _expect_success(answer: object) -> None:
    if answer != Code.SUCCESS:
        raise ConnectionError(f"the tracker refuses: {answer}")

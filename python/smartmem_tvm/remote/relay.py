# SPDX-License-Identifier: Apache-2.0
"""A connection through a relay process that enforces deadlines and is killed to end the connection.

TVM's client waits for an answer without a time limit, in places with Python's lock held, and hides its socket, so its
own process cannot end the wait. It therefore connects to a relay process, which forwards all data.
"""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import suppress

from ..errors import UserError
from . import relay_process
from .relay_process import DEADLINE, EXPIRED, LOST, REFUSED
from .wire import Address, address_text

__all__ = ["EXPIRED", "LOST", "REFUSED", "Relay"]


class Relay:
    """A relay to a peer, for one connection.

    Parameters
    ----------
    peer : tuple
        Host and port.

    Attributes
    ----------
    address : tuple
        The address to connect to instead of the peer's.
    """

    def __init__(self, peer: Address):
        # A new session: Ctrl-C only reaches this process, which may finish its work. Run by path, as the package
        # imports TVM.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", relay_process.__file__, peer[0], str(peer[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._ending = ""
        if not (port := self._process.stdout.readline()):
            self.close()
            raise UserError(f"No process for the connection to {address_text(peer)} could start; free some memory.")
        self.address: Address = ("127.0.0.1", int(port))

    def set_deadline(self, deadline: float) -> None:
        """End the connection at this value of `time.monotonic`, even if this process is blocked; infinity: never."""
        with suppress(OSError, ValueError):  # it has already ended
            self._process.stdin.write(DEADLINE.pack(deadline))

    @property
    def ending(self) -> str:
        """Return why the connection ended: `EXPIRED`, `LOST`, or `REFUSED` and the reason; empty if it is open."""
        if not self._ending and not self._process.stdout.closed and select.select([self._process.stdout], [], [], 0)[0]:
            self._ending = self._process.stdout.readline().decode().strip() or LOST
        return self._ending

    def close(self) -> None:
        """End the connection."""
        self._ending = self.ending or LOST
        self._process.kill()
        with self._process:  # waits for it, and closes the pipes
            pass

# SPDX-License-Identifier: Apache-2.0
"""A connection that is owned by a process of its own, which has its deadlines, and is ended by ending that process.

TVM's client waits for an answer without a time limit, in places with Python's lock held, and hides its socket: nobody
in its process can end the waiting. So it is led to a process beside it, which hands everything on.
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
    """A way to a peer, for one connection.

    Parameters
    ----------
    peer : tuple
        Host and port.

    Attributes
    ----------
    address : tuple
        Where the connection is to be opened instead.
    """

    def __init__(self, peer: Address):
        # Ctrl-C is for this process, which may want to finish what it does. Not the package, which imports TVM.
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
        """End the connection when `time.monotonic` has that value, whatever this process is doing; infinity: never."""
        with suppress(OSError, ValueError):  # it has ended already
            self._process.stdin.write(DEADLINE.pack(deadline))

    @property
    def ending(self) -> str:
        """Why the connection has ended: `EXPIRED`, `LOST`, `REFUSED` with the reason behind it; empty if it has not."""
        if not self._ending and not self._process.stdout.closed and select.select([self._process.stdout], [], [], 0)[0]:
            self._ending = self._process.stdout.readline().decode().strip() or LOST
        return self._ending

    def close(self) -> None:
        """End the connection."""
        self._ending = self.ending or LOST
        self._process.kill()
        with self._process:  # waits for it, and closes the pipes
            pass

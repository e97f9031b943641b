# SPDX-License-Identifier: Apache-2.0
"""The sockets of TVM's sessions: whether the peer is still there, and a way to stop waiting for it.

TVM's client waits for an answer without a time limit and hides its socket. All sockets of the process can be listed,
and one that is shut down ends the waiting.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from .wire import Address

# Of two connections to one peer that are opened at the same time, nobody could tell which is whose.
_opening: defaultdict[Address, threading.Lock] = defaultdict(threading.Lock)
_DESCRIPTORS = Path("/dev/fd")


class Line:
    """A second handle of the connection that some code opens to a peer.

    Parameters
    ----------
    peer : tuple
        Host and port, the host as a number or a name.
    """

    def __init__(self, peer: Address):
        self._opening = _opening[peer]
        found = socket.getaddrinfo(*peer, type=socket.SOCK_STREAM)
        self._peers = {address[:2] for *_, address in found}
        self._before: set[int] | None = None
        self._socket: socket.socket | None = None
        self._cut = False

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Take hold of the connection that is opened inside; other threads wait if they want one to the same peer."""
        with self._opening:
            if self._cut:
                raise ConnectionError("the connection was not opened in time")
            self._before = set(self._sockets())
            try:
                yield
                self._hold()
            finally:
                self._before = None

    def _hold(self) -> None:
        new = [descriptor for inode, descriptor in self._sockets().items() if inode not in self._before]
        if new:
            self._socket = socket.socket(fileno=os.dup(new[-1]))

    def patience(self, seconds: float) -> None:
        """Let the system end each wait for an answer after so many seconds; 0 for never.

        Objects of a session are freed there and waited for with Python's lock held: no thread could `cut` the line
        then.
        """
        if self._socket is not None:
            whole = int(seconds)
            value = struct.pack("ll", whole, int((seconds - whole) * 1e6))
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def cut(self) -> None:
        """End the connection, open or being opened: whoever waits for it gets an error."""
        self._cut = True
        if self._socket is None and self._before is not None:
            self._hold()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def is_open(self) -> bool:
        """Whether both sides still hold the connection."""
        if self._cut or self._socket is None:
            return not self._cut
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """End the connection, and let go of it."""
        self.cut()
        if self._socket is not None:
            self._socket.close()

    def _sockets(self) -> dict[int, int]:
        """A descriptor of each socket that is connected to the peer, by inode: a number is used again, an inode not."""
        found = {}
        for descriptor in [int(path.name) for path in _DESCRIPTORS.iterdir()]:
            if _peer_of(descriptor) in self._peers:
                with contextlib.suppress(OSError):
                    found[os.fstat(descriptor).st_ino] = descriptor
        return found


def _peer_of(descriptor: int) -> Address | None:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        sock = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    with sock:
        try:
            return sock.getpeername()[:2]
        except OSError:
            return None

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
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from .wire import Address, keep_alive

# Of two connections to one peer that are opened at the same time, nobody could tell which is whose.
_opening: defaultdict[Address, threading.Lock] = defaultdict(threading.Lock)
_DESCRIPTORS = Path("/dev/fd")
_TABLES, _CONNECTING = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6")), 2
_PAUSE_SECONDS = 0.05


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
        self._cut, self._holding = False, threading.Lock()

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Take hold of the connection that is opened inside; other threads wait if they want one to the same peer."""
        with self._opening:
            if self._cut:
                raise ConnectionError("the connection was not opened in time")
            self._before = before = self._inodes()
            try:
                yield
                self._hold(before)
                if self._socket is not None:
                    keep_alive(self._socket)
            finally:
                self._before = None

    def _hold(self, before: set[int]) -> None:
        with self._holding:
            for inode, handle in self._handles():
                if self._socket is None and inode not in before:
                    self._socket = handle
                else:
                    handle.close()

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
        while self._socket is None and (before := self._before) is not None:
            self._hold(before)
            if self._socket is None:
                time.sleep(_PAUSE_SECONDS)
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

    def _inodes(self) -> set[int]:
        """What tells the connections to the peer apart: the number of a descriptor is used again, an inode is not."""
        found = set()
        for inode, handle in self._handles():
            handle.close()
            found.add(inode)
        return found

    def _handles(self) -> Iterator[tuple[int, socket.socket]]:
        """Inode and a new handle of each socket that is connected to the peer, or about to be.

        What is looked at is the handle: behind the descriptor that it was made of, another thread may have opened
        something else by now.
        """
        for descriptor in [int(path.name) for path in _DESCRIPTORS.iterdir()]:
            handle = _socket_of(descriptor)
            if handle is None:
                continue
            inode = os.fstat(handle.fileno()).st_ino
            if _peer_of(handle, inode) in self._peers:
                yield inode, handle
            else:
                handle.close()


def _socket_of(descriptor: int) -> socket.socket | None:
    """A new handle of a socket; None if it is something else, or nothing any more."""
    try:
        own = os.dup(descriptor)
    except OSError:
        return None
    if not stat.S_ISSOCK(os.fstat(own).st_mode):
        os.close(own)
        return None
    return socket.socket(fileno=own)


def _peer_of(handle: socket.socket, inode: int) -> Address | None:
    try:
        return handle.getpeername()[:2]
    except OSError:
        return _destination(inode) if _is_connecting(handle) else None


def _is_connecting(handle: socket.socket) -> bool:
    try:
        return handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CONNECTING
    except (OSError, AttributeError):  # no socket of TCP's, or a system that does not tell
        return False


def _destination(inode: int) -> Address | None:
    """Where a socket is going that is not connected yet, which only Linux tells."""
    for table in filter(Path.exists, _TABLES):
        for fields in map(str.split, table.read_text().splitlines()[1:]):
            if int(fields[9]) == inode:
                host, _, port = fields[2].partition(":")
                words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
                family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
                return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16)
    return None

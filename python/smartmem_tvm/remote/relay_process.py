# SPDX-License-Identifier: Apache-2.0
"""The program of a relay: ``python relay_process.py HOST PORT``.

It imports only the standard library, to start in some milliseconds. It prints the port at which it waits for one
client, and the reason before it ends. It reads deadlines, each a number of eight bytes on the clock of
`time.monotonic`.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import sys
import threading
import time

DEADLINE = struct.Struct("d")
EXPIRED, LOST, REFUSED = "expired", "lost", "refused"  # why a relay ends
_IDLE, _INTERVAL, _PROBES = 10, 5, 3  # seconds before probes, seconds between probes, unanswered probes
_CHUNK = 1 << 18  # bytes


def keep_alive(sock: socket.socket) -> None:
    """Let the system detect within half a minute that the peer's machine or network is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE), ("TCP_KEEPINTVL", _INTERVAL), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def main(host: str, port: str) -> None:
    """Relay until a side closes, a deadline passes, or the process that started this one closes its pipe or ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_relay, args=(listener, (host, int(port))), daemon=True).start()
    deadline = math.inf
    while True:
        left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
        if not select.select([0], [], [], left)[0]:
            _end(EXPIRED)
        message = os.read(0, DEADLINE.size)
        if len(message) < DEADLINE.size:
            os._exit(0)
        (deadline,) = DEADLINE.unpack(message)


def _relay(listener: socket.socket, server: tuple[str, int]) -> None:
    client, _ = listener.accept()
    listener.close()
    try:
        there = socket.create_connection(server)
    except OSError as error:
        _end(f"{REFUSED} {error.strerror or error}")
    for each in (client, there):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(there)
    threading.Thread(target=_copy, args=(client, there), daemon=True).start()
    _copy(there, client)


def _copy(source: socket.socket, drain: socket.socket) -> None:
    try:
        while data := source.recv(_CHUNK):
            drain.sendall(data)
    except OSError:
        pass
    _end(LOST)


def _end(reason: str) -> None:
    """Report the reason before the connections close, so that it can be read once they are closed."""
    os.write(1, f"{reason}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

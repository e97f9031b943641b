# SPDX-License-Identifier: Apache-2.0
"""A failing network: a proxy that hangs up on both sides after a number of bytes from the client.

It is a process of its own (``python cutting_proxy.py HOST PORT BYTES``), as a client may wait with Python's lock held.
"""

import contextlib
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager


def main(host: str, port: str, after: str):
    """Print the address, and serve one client."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    client, _ = listener.accept()
    there = socket.create_connection((host, int(port)))
    threading.Thread(target=forward, args=(there, client, sys.maxsize), daemon=True).start()
    forward(client, there, int(after))


def forward(source: socket.socket, drain: socket.socket, left: int):
    """Forward `left` bytes, then hang up."""
    with contextlib.suppress(OSError):
        while left > 0 and (data := source.recv(min(left, 65536))):
            drain.sendall(data)
            left -= len(data)
    for each in (source, drain):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(address: str, after: int):
    """Start such a proxy in front of `address`, and yield its address."""
    command = [sys.executable, __file__, *address.split(":"), str(after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            yield proxy.stdout.readline().strip()
        finally:
            proxy.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])

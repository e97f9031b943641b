# SPDX-License-Identifier: Apache-2.0
"""Messages between client, tracker and server before TVM's own session begins.

TVM defines these messages in `tvm.rpc.base`, which imports TVM and has no time limits.
"""

from __future__ import annotations

import ipaddress
import json
import select
import socket
import struct
from enum import IntEnum
from typing import Any

from .. import json_data
from ..errors import UserError

TRACKER_MAGIC = 0x2F271
SESSION_MAGIC = 0xFF271
WRONG_KEY = SESSION_MAGIC + 2
_MOST_BYTES = 1 << 20  # limit of a message: a tracker's summary of thousands of devices is smaller


class Code(IntEnum):
    """Codes of requests to a tracker."""

    SUCCESS = 0
    PUT = 3
    REQUEST = 4
    UPDATE_INFO = 5
    SUMMARY = 6
    PENDING = 7


Address = tuple[str, int]


def parse_address(text: str) -> Address:
    """Return host and port of ``host:port``.

    Raises
    ------
    UserError
        If the text has another form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"'{text}' is no address: write host:port, as in 127.0.0.1:9190.")
    return host.strip("[]"), int(port)


def address_text(address: Address) -> str:
    """Return an address as ``host:port``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections; port 0 selects a free one.

    Raises
    ------
    UserError
        If the address is not this machine's, or the port is in use.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=64)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"Nothing can listen on {host}, port {port} ({error}): give --host an address of this machine, and --port "
            "one that is free, or none."
        ) from error


def receive(sock: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes.

    Raises
    ------
    OSError
        If the peer closes early, or is silent for longer than the socket's time limit.
    """
    found = bytearray()
    while len(found) < count:
        part = sock.recv(count - len(found))
        if not part:
            raise ConnectionError("the peer closed the connection")
        found += part
    return bytes(found)


def receive_int(sock: socket.socket) -> int:
    """Receive a number of four bytes."""
    return struct.unpack("<i", receive(sock, 4))[0]


def receive_text(sock: socket.socket, most: int = _MOST_BYTES) -> str:
    """Receive a text after its length in bytes."""
    size = receive_int(sock)
    if not 0 <= size <= most:
        raise ConnectionError(f"the peer announces a message of {size} bytes")
    return receive(sock, size).decode(errors="replace")


def send_int(sock: socket.socket, number: int) -> None:
    """Send a number of four bytes."""
    sock.sendall(struct.pack("<i", number))


def send_text(sock: socket.socket, text: str) -> None:
    """Send a text after its length in bytes."""
    data = text.encode()
    sock.sendall(struct.pack("<i", len(data)) + data)


class Connection:
    """A connection to a tracker.

    Parameters
    ----------
    tracker : tuple
        Its host and port.
    timeout : float
        Seconds for connecting and for each answer.

    Raises
    ------
    OSError
        If nothing answers there, or something other than a tracker.
    """

    def __init__(self, tracker: Address, timeout: float):
        self.timeout = timeout
        self.socket = socket.create_connection(tracker, timeout)
        try:
            send_int(self.socket, TRACKER_MAGIC)
            if receive_int(self.socket) != TRACKER_MAGIC:
                raise ConnectionError("what answers there is no tracker")
        except BaseException:
            self.close()
            raise

    @classmethod
    def over(cls, sock: socket.socket, timeout: float) -> Connection:
        """Return a connection over a socket on which greetings have been exchanged."""
        connection = cls.__new__(cls)
        connection.socket, connection.timeout = sock, timeout
        return connection

    def ask(self, *message: Any) -> Any:
        """Send a message and return the answer; raise OSError (TimeoutError included) if there is none."""
        self.send(*message)
        return self.answer()

    def send(self, *message: Any) -> None:
        """Send a message."""
        self.socket.settimeout(self.timeout)
        send_text(self.socket, json.dumps(message))

    def is_answered(self, seconds: float) -> bool:
        """Whether an answer begins to arrive within some seconds."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def answer(self) -> Any:
        """Receive the tracker's answer."""
        try:
            return json_data.parse(receive_text(self.socket))
        except ValueError as error:
            raise ConnectionError("the tracker's answer is not JSON") from error

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_) -> None:
        self.close()

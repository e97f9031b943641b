# SPDX-License-Identifier: Apache-2.0
"""Addresses and messages before a session, which are TVM's."""

import socket
import threading

import pytest
from tvm.rpc import base

from smartmem_tvm.errors import UserError
from smartmem_tvm.remote import wire


def test_numbers_are_tvms():
    assert wire.TRACKER_MAGIC == base.RPC_TRACKER_MAGIC
    assert (wire.SESSION_MAGIC, wire.WRONG_KEY) == (base.RPC_MAGIC, base.RPC_CODE_MISMATCH)
    names = {"PENDING": "GET_PENDING_MATCHKEYS"}
    assert {code.name: code.value for code in wire.Code} == {
        code.name: getattr(base.TrackerCode, names.get(code.name, code.name)) for code in wire.Code
    }


def test_addresses():
    assert wire.parse_address("localhost:9190") == ("localhost", 9190)
    assert wire.parse_address("[::1]:80") == ("::1", 80)
    assert wire.address_text(("::1", 80)) == "[::1]:80"
    assert [wire.is_loopback(host) for host in ("127.0.0.2", "::1", "localhost", "10.0.0.1", "phone")] == [
        *(True, True, True),
        *(False, False),
    ]


@pytest.mark.parametrize("text", ["", "9190", "host:", ":9190", "host:port", "host:0", "host:70000", "host:-1"])
def test_what_is_no_address_is_named(text):
    with pytest.raises(UserError, match=r"is no address: write host:port"):
        wire.parse_address(text)


def test_a_port_that_is_taken_is_named():
    with wire.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=rf"listen on 127\.0\.0\.1, port {port}"):
            wire.listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_named(host):
    with pytest.raises(UserError, match=f"listen on {host}"):
        wire.listen(host, 0)


def answering(*answers: bytes):
    """The address of something that reads a number and a message for each answer, and hangs up after the last."""
    listener = wire.listen("127.0.0.1", 0)

    def serve():
        conn, _ = listener.accept()
        with conn, listener:
            for answer in answers:
                conn.recv(4096)
                conn.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()


MAGIC = wire.TRACKER_MAGIC.to_bytes(4, "little")


@pytest.mark.parametrize("answer", [b"", b"\1\2", b"HTTP/1.1 400"])
def test_what_is_no_tracker_is_an_error(answer):
    with pytest.raises(OSError, match=r"closed|reset|no tracker"):
        wire.Connection(answering(answer), timeout=5)


@pytest.mark.parametrize("answer", [b"\1\0\0\0x", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\5\0\0\0tr", b""])
def test_a_wrong_answer_is_an_error(answer):
    with (
        wire.Connection(answering(MAGIC, answer), timeout=5) as link,
        pytest.raises(OSError, match=r"JSON|bytes|closed|reset"),
    ):
        link.ask(wire.Code.SUMMARY)


def test_a_silent_tracker_is_waited_for_so_long():
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        wire.Connection(silent.getsockname(), timeout=0.1)

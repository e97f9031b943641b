# SPDX-License-Identifier: Apache-2.0
"""A connection through a process of its own: what it carries, how it ends, and that it ends in time."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from rpc_processes import PYTHON, until
from smartmem_tvm.remote.relay import EXPIRED, LOST, REFUSED, Relay
from smartmem_tvm.remote.wire import listen


@pytest.fixture
def peer():
    with listen("127.0.0.1", 0) as listener:
        yield listener


def opened(peer):
    """A relay, the connection to it, and the other end."""
    relay = Relay(peer.getsockname())
    connection = socket.create_connection(relay.address)
    return relay, connection, peer.accept()[0]


def test_a_connection_is_ended_and_the_others_are_not(peer):
    relays = [opened(peer) for _ in range(3)]
    relays[1][0].close()
    assert [bool(relay.ending) for relay, *_ in relays] == [False, True, False]
    with pytest.raises(ConnectionError):
        until(lambda: relays[1][1].sendall(b"x"))
    assert relays[1][2].recv(1) == b""
    relays[2][1].sendall(b"x")
    assert relays[2][2].recv(1) == b"x"
    for relay, connection, other in relays:
        relay.close()
        connection.close()
        other.close()


def test_all_bytes_go_both_ways_and_the_last_ones_before_the_end(peer):
    relay, connection, other = opened(peer)
    data = os.urandom(1 << 22)
    with connection, other, ThreadPoolExecutor(2) as pool:
        for source, drain in ((connection, other), (other, connection)):
            sent = pool.submit(source.sendall, data)
            received = bytearray()
            while len(received) < len(data):
                received += drain.recv(1 << 20)
            sent.result()
            assert received == data
        other.sendall(b"last")
        other.close()
        assert connection.recv(4, socket.MSG_WAITALL) == b"last" and connection.recv(1) == b""
        assert relay.ending == LOST
        relay.close()


def test_a_peer_that_is_not_there_is_told_from_one_that_hangs_up():
    with listen("127.0.0.1", 0) as taken:
        address = taken.getsockname()
    relay = Relay(address)
    with socket.create_connection(relay.address) as connection:
        assert connection.recv(1) == b""
    assert relay.ending == f"{REFUSED} Connection refused"
    relay.close()


def test_a_wait_ends_in_time_whatever_other_threads_do(peer):
    relay, connection, other = opened(peer)
    with connection, other:
        relay.set_deadline(time.monotonic() + 30)
        start = time.monotonic()
        relay.set_deadline(start + 0.2)
        assert connection.recv(1) == b"" and relay.ending == EXPIRED
        assert 0.15 < time.monotonic() - start < 3
        relay.set_deadline(time.monotonic() + 1)  # too late, and no error
        relay.close()


def test_a_deadline_that_is_put_off_does_not_count(peer):
    relay, connection, other = opened(peer)
    with connection, other:
        relay.set_deadline(time.monotonic() + 0.3)
        relay.set_deadline(float("inf"))
        time.sleep(0.5)
        other.sendall(b"x")
        assert connection.recv(1) == b"x" and not relay.ending
        relay.close()


def test_a_connection_that_nobody_accepts_is_ended():
    """The system goes on asking for minutes, and has no peer to tell until then."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as full:
        connected = True
        while connected:
            last = full.enter_context(socket.socket())
            last.setblocking(False)
            connected = not last.connect_ex(listener.getsockname()) or select.select([], [last], [], 0.2)[1]
        relay = Relay(listener.getsockname())
        relay.set_deadline(time.monotonic() + 0.2)
        with socket.create_connection(relay.address) as connection:
            assert connection.recv(1) == b"" and relay.ending == EXPIRED
        relay.close()


def test_ctrl_c_is_not_for_a_relay(peer):
    """It goes to all processes of the terminal's group."""
    relay, connection, other = opened(peer)
    assert os.getpgid(relay._process.pid) != os.getpgid(0)
    relay.close()
    connection.close()
    other.close()


def test_a_relay_ends_with_the_process_that_started_it(peer):
    program = (
        "import sys, time, socket\n"
        "from smartmem_tvm.remote.relay import Relay\n"
        f"relay = Relay({peer.getsockname()!r})\n"
        "connection = socket.create_connection(relay.address)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        other = peer.accept()[0]
        process.send_signal(signal.SIGKILL)
        other.settimeout(5)
        assert other.recv(1) == b""


def test_many_threads_have_connections_of_their_own():
    def use(number):
        with listen("127.0.0.1", 0) as listener:
            for _ in range(5):
                relay, connection, other = opened(listener)
                with connection, other:
                    connection.sendall(bytes([number]))
                    assert other.recv(1) == bytes([number])
                    relay.close()
        return number

    before = {*threading.enumerate()}  # threads of earlier tests may end meanwhile: only new ones count
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(use, range(4))) == list(range(4))
    assert {*threading.enumerate()} <= before

# SPDX-License-Identifier: Apache-2.0
"""A second handle of a connection finds the right one, sees its end, and ends it."""

import select
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from smartmem_tvm.remote.line import Line
from smartmem_tvm.remote.wire import listen


@pytest.fixture
def peer():
    with listen("127.0.0.1", 0) as listener:
        yield listener


def opened(peer):
    """A line, the connection that it holds, and the other end."""
    line = Line(peer.getsockname())
    with line.opening():
        connection = socket.create_connection(peer.getsockname())
    return line, connection, peer.accept()[0]


def test_a_connection_is_cut_and_the_others_are_not(peer):
    lines = [opened(peer) for _ in range(3)]
    lines[1][0].cut()
    assert [line.is_open() for line, *_ in lines] == [True, False, True]
    assert lines[1][1].recv(1) == lines[1][2].recv(1) == b""
    lines[2][1].sendall(b"x")
    assert lines[2][2].recv(1) == b"x"
    for line, connection, other in lines:
        line.close()
        connection.close()
        other.close()


def test_what_is_still_to_be_read_is_left_there(peer):
    line, connection, other = opened(peer)
    with connection, other:
        other.sendall(b"x")
        time.sleep(0.05)
        assert line.is_open() and connection.recv(1) == b"x"
        other.close()
        time.sleep(0.05)
        assert not line.is_open()
        line.close()


def test_a_connection_that_does_not_open_is_cut(peer):
    line, errors = Line(peer.getsockname()), []

    def wait():
        try:
            with line.opening(), socket.create_connection(peer.getsockname()) as connection:
                errors.append(connection.recv(1))
                raise ConnectionError
        except OSError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    line.cut()
    waiting.join(5)
    assert errors[0] == b""


def test_a_connection_that_nobody_accepts_is_cut():
    """The system goes on asking for minutes, and has no peer to tell until then."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as full:
        connected = True
        while connected:
            last = full.enter_context(socket.socket())
            last.setblocking(False)
            connected = not last.connect_ex(listener.getsockname()) or select.select([], [last], [], 0.2)[1]
        line, errors = Line(listener.getsockname()), []

        def wait():
            try:
                with line.opening():
                    socket.create_connection(listener.getsockname())
            except OSError as error:
                errors.append(error)

        opening = threading.Thread(target=wait)
        opening.start()
        time.sleep(0.2)
        line.cut()
        opening.join(5)
        assert len(errors) == 1


def test_a_line_that_never_opened_touches_no_other(peer):
    """Neither one that failed, nor one whose turn had not come."""
    failed, late = Line(peer.getsockname()), Line(peer.getsockname())
    with pytest.raises(ZeroDivisionError), failed.opening():
        1 / 0  # noqa: B018
    late.cut()
    line, connection, other = opened(peer)
    with connection, other:
        failed.close()
        late.close()
        assert line.is_open()
        with pytest.raises(ConnectionError, match="not opened in time"), late.opening():
            raise AssertionError("it must not begin")
        line.close()


def test_a_wait_ends_without_another_thread(peer):
    line, connection, other = opened(peer)
    with connection, other:
        line.patience(0.2)
        start = time.monotonic()
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        assert 0.15 < time.monotonic() - start < 3
        line.close()


def test_lines_of_many_threads_hold_their_own_connections():
    """Descriptors come and go meanwhile, and their numbers are used again."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def use(_):
        wrong = 0
        with listen("127.0.0.1", 0) as listener:
            for _ in range(60):
                line, connection, other = opened(listener)
                with connection, other:
                    held = line._socket
                    wrong += (held.getsockname(), held.getpeername()) != (connection.getsockname(), other.getsockname())
                    line.close()
        return wrong

    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(use, range(4))) == [0] * 4
    finally:
        sys.setswitchinterval(before)

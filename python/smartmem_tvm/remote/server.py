# SPDX-License-Identifier: Apache-2.0
"""A server that lends this machine's devices to one client after another.

A session runs TVM's loop (`rpc.ServerLoop`). The server around it is our own, because TVM's server leaves processes
behind when it is ended, ends itself when a session crashes or the tracker is away for a minute, waits forever for a
client that connects and sends nothing, and takes seconds to register.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..tune.scratch import scratch
from . import worker
from .processes import end_group
from .registration import Registration
from .relay_process import keep_alive
from .wire import (
    SESSION_MAGIC,
    WRONG_KEY,
    Address,
    address_text,
    is_loopback,
    listen,
    receive_int,
    receive_text,
    send_int,
    send_text,
)

EXPIRED = "RPCSessionTimeoutError"  # the text by which TVM's own clients recognise it
_GREETING_SECONDS = 5.0
_GONE_SECONDS = 1.0  # for a session to end by itself after its client has closed it
_FOREVER = float("inf")
_GONE_EVENT = getattr(select, "POLLRDHUP", 0)

_log = logging.getLogger(__name__)


@dataclass
class _Session:
    """A client that is being served."""

    conn: socket.socket
    peer: str
    pid: int
    folder: tempfile.TemporaryDirectory
    seconds: float
    start: float = field(default_factory=time.monotonic)
    gone: bool = False

    @property
    def deadline(self) -> float:
        return self.start + self.seconds


class Server:
    """A server bound to an address; `serve` lends the devices.

    Parameters
    ----------
    key : str
        The name under which clients ask a tracker for devices of this kind.
    tracker : tuple or None
        Host and port of the tracker; without one, clients connect directly and show `key`.
    host : str
        The address to listen on: a client that reaches it can run any code here.
    port : int
        0 for a free one.

    Raises
    ------
    UserError
        If it cannot listen there, or the tracker's clients could not reach it.
    """

    def __init__(self, key: str = "", tracker: Address | None = None, host: str = "127.0.0.1", port: int = 0):
        if any(each.isspace() for each in key):
            raise UserError(f"Key '{key}' has a space in it, which TVM's protocol does not allow: choose another key.")
        if tracker is not None and not key:
            raise UserError("A tracker lends devices by their key: give --key, for example the name of the device.")
        if tracker is not None and is_loopback(host) and not is_loopback(tracker[0]):
            raise UserError(
                f"The tracker {address_text(tracker)} is on another machine, whose clients do not reach {host}: give "
                "--host an address of this machine that they do reach."
            )
        self.key, self.tracker = key, tracker
        self._listener = listen(host, port)
        self.address: Address = self._listener.getsockname()[:2]
        self._wake, self._wakened = socket.socketpair()
        self._session: _Session | None = None
        self._stopped = False
        announced = None if host in ("0.0.0.0", "::") else self.address[0]
        self._registration = Registration(tracker, key, announced, self.address[1]) if tracker is not None else None

    def serve(self) -> None:
        """Lend the devices until SIGTERM, SIGINT or SIGHUP; then no process of a session remains."""
        try:
            with self._signals(), scratch("rpc"):
                try:
                    # Clients may connect while TVM is being imported, and wait.
                    self._update_registration()
                    worker.load_tvm()
                    while not self._stopped:
                        self._step(self._update_registration())
                finally:
                    self._end_session()
        finally:
            self._close()

    def _update_registration(self) -> float:
        if self._registration is None:
            return _FOREVER
        return self._registration.update(time.monotonic(), self._session is None)

    def _step(self, due: float) -> None:
        """Wait for the first event and handle it."""
        session, link = self._session, self._registration and self._registration.link
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if link is not None:
            poll.register(link.socket, select.POLLIN)
        if session is None:
            poll.register(self._listener, select.POLLIN)
        elif not session.gone:
            poll.register(session.conn, _GONE_EVENT)
        due = min(due, session.deadline if session else _FOREVER)
        milliseconds = None if due == _FOREVER else max(0.0, due - time.monotonic()) * 1000 + 1
        happened = {descriptor for descriptor, _ in poll.poll(milliseconds)}
        if self._wake.fileno() in happened:
            self._handle_signals(self._wake.recv(4096))
        if link is not None and link.socket.fileno() in happened:
            self._registration.lose("it has hung up")
        if session is None:
            if self._listener.fileno() in happened and not self._stopped:
                self._accept()
        elif self._session is session:
            self._watch(session, session.conn.fileno() in happened)

    def _handle_signals(self, signals: bytes) -> None:
        if set(signals) - {signal.SIGCHLD}:
            self._stopped = True
        elif self._session is not None and os.waitid(os.P_PID, self._session.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self._end_session()
            self._offer()

    def _watch(self, session: _Session, closed: bool) -> None:
        """End a session whose client is gone or whose time is over."""
        now = time.monotonic()
        if closed:
            session.gone, session.seconds = True, min(session.seconds, now - session.start + _GONE_SECONDS)
        elif now >= session.deadline:
            what = "its client is gone" if session.gone else f"its time limit of {session.seconds:g} s is over"
            _log.warning("The session of %s is ended: %s.", session.peer, what)
            self._end_session(None if session.gone else f"{EXPIRED}: the session's limit of {session.seconds:g} s")
            self._offer()

    def _offer(self) -> None:
        if self._registration is not None:
            self._registration.offer()

    def _accept(self) -> None:
        try:
            conn, peer = self._listener.accept()
        except OSError:  # the client has already given up
            return
        try:
            conn.settimeout(_GREETING_SECONDS)
            seconds = self._greet(conn)
            conn.settimeout(None)  # the session's process shares this setting
        except (OSError, ValueError) as error:
            _log.warning("A connection from %s is refused: %s.", address_text(peer[:2]), error)
            conn.close()
            return
        keep_alive(conn)
        try:
            self._begin_session(conn, address_text(peer[:2]), seconds)
        except OSError as error:  # no memory or disk space for another process or folder
            _log.warning("The session of %s cannot begin: %s.", address_text(peer[:2]), error)
            conn.close()
            self._offer()

    def _begin_session(self, conn: socket.socket, peer: str, seconds: float) -> None:
        folder = tempfile.TemporaryDirectory(prefix="session-", ignore_cleanup_errors=True)
        pid = worker.fork(conn, Path(folder.name), self._close)
        self._session = _Session(conn, peer, pid, folder, seconds)
        _log.info("Session of %s, process %d.", peer, pid)

    def _greet(self, conn: socket.socket) -> float:
        """Exchange greetings, and return the seconds that the client allows for its session."""
        if receive_int(conn) != SESSION_MAGIC:
            raise ConnectionError("it does not speak TVM's protocol")
        shown, *options = receive_text(conn, most=4096).split() or [""]
        wanted = self._registration.match_key if self._registration is not None else self.key
        if shown != f"client:{wanted}":
            send_int(conn, WRONG_KEY)
            raise ConnectionError("it shows another key, or one that was lent to another client before")
        send_int(conn, SESSION_MAGIC)
        send_text(conn, f"server:{self.key}")
        limits = [float(each.partition("=")[2]) for each in options if each.startswith("-timeout=")]
        return limits[-1] if limits else _FOREVER

    def _end_session(self, message: str = "") -> None:
        """End the processes of a session, send its client the reason, and remove its files."""
        session, self._session = self._session, None
        if session is None:
            return
        status = end_group(session.pid)
        if message:
            _return_exception(session.conn, message)
        elif os.WIFSIGNALED(status) and not session.gone and not self._stopped:
            name = signal.Signals(os.WTERMSIG(status)).name
            _log.warning("The process of %s's session was ended by %s.", session.peer, name)
        session.conn.close()
        session.folder.cleanup()
        _log.info("End of the session of %s, after %.1f s.", session.peer, time.monotonic() - session.start)

    def _close(self) -> None:
        for each in (self._listener, self._wake, self._wakened):
            each.close()
        if self._registration is not None and self._registration.link is not None:
            self._registration.link.close()

    @contextmanager
    def _signals(self):
        """Let signals wake the loop instead of interrupting its work."""
        for each in (self._wake, self._wakened):
            each.setblocking(False)
        before = signal.set_wakeup_fd(self._wakened.fileno(), warn_on_full_buffer=False)
        stopping = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
            stopping.append(signal.SIGHUP)
        old = {each: signal.signal(each, lambda *_: None) for each in (*stopping, signal.SIGCHLD)}
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            for each, handler in old.items():
                signal.signal(each, handler)


def _return_exception(conn: socket.socket, message: str) -> None:
    """Answer the client's open call with an error; the session's process has ended and writes no more."""
    import tvm_ffi

    conn.setblocking(False)  # do not wait for a client that does not read
    try:
        tvm_ffi.get_global_func("rpc.ReturnException")(conn.fileno(), message)
    except Exception as error:  # TVM raises several types
        _log.info("The client was not told: %s", error)

# SPDX-License-Identifier: Apache-2.0
"""Run TVM's tracker in this process alone; TVM itself starts a second process that outlives the first."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from types import ModuleType

from .wire import Address, listen


class Tracker:
    """A tracker bound to an address; `serve` answers servers and clients.

    Parameters
    ----------
    host : str
        The address to listen on.
    port : int
        0 for a free one.

    Raises
    ------
    UserError
        If it cannot listen there.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0):
        self._listener = listen(host, port)
        # TVM's tracker writes a message in two pieces, and the second would wait 40 ms for the acknowledgement of the
        # first. Accepted connections inherit the setting.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _import_tvm()  # now, so that clients get answers once they know the address
        self.address: Address = self._listener.getsockname()[:2]

    def serve(self) -> None:
        """Answer until SIGTERM, SIGINT or SIGHUP."""
        ioloop, base, tracker = _import_tvm()
        asyncio.set_event_loop(asyncio.new_event_loop())
        handler = tracker.TrackerServerHandler(self._listener, base.random_key("tracker"))
        loop = ioloop.IOLoop.current()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, lambda *_: loop.add_callback_from_signal(loop.stop))
        handler.run()


def _import_tvm() -> tuple[ModuleType, ModuleType, ModuleType]:
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")  # the compiler would double the time of the import
    from tornado import ioloop
    from tvm.rpc import base, tracker

    return ioloop, base, tracker

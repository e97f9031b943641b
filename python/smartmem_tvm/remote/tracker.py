# SPDX-License-Identifier: Apache-2.0
"""A tracker: TVM's, in this process alone, where TVM starts a second one that outlives the first."""

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
        Where it listens.
    port : int
        0 for one that is free.

    Raises
    ------
    UserError
        If it cannot listen there.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0):
        self._listener = listen(host, port)
        # TVM's tracker writes a message in two pieces, and the second would wait for the first to be acknowledged, 40
        # ms each time. What it accepts inherits the setting.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _import_tvm()  # now, so that who learns the address gets answers
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
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")  # TVM's compiler is not needed, and takes as long again
    from tornado import ioloop
    from tvm.rpc import base, tracker

    return ioloop, base, tracker

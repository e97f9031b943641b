# SPDX-License-Identifier: Apache-2.0
"""``smartmem rpc``: run a tracker or a server that lends this machine's devices, or query a tracker."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._version import EXTRAS
from ..errors import UserError
from ..tune.host import thread_count
from .console import Result, table

if TYPE_CHECKING:
    from rich.console import Console

NAME = "rpc"
HELP = "start a tracker or a server of devices, or ask a tracker what it has"
EXAMPLE = """\
  smartmem rpc tracker --port 9190                                 on one machine
  smartmem rpc server --tracker 127.0.0.1:9190 --key here          on each machine with a device
  smartmem rpc query --tracker 127.0.0.1:9190                      keys, devices, how many are free

Each program that reaches a server may run anything on its machine. So both listen on 127.0.0.1, unless --host names
another address of this machine, which should be one that only you reach. They end with SIGTERM or Ctrl-C, and leave
no process."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("action", choices=tuple(_ACTIONS), help="what to do")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: one that is free)")
    text = "of server: where to register; of query: whom to ask; host:port"
    parser.add_argument("--tracker", metavar="ADDRESS", help=text)
    parser.add_argument("--key", default="", help="of server: the name under which clients ask for it")
    text = "of tracker and server: end when the process that started it ends (Linux)"
    parser.add_argument("--with-parent", action="store_true", help=text)


def execute(args: argparse.Namespace) -> Result:
    """Run the action; a server starts to serve after its address is printed."""
    return _ACTIONS[args.action](args)


def _tracker(args: argparse.Namespace) -> Result:
    from ..remote.tracker import Tracker
    from ..remote.wire import address_text

    if importlib.util.find_spec("tornado") is None:
        raise UserError(f"A tracker needs tornado, which is not installed: pip install {' '.join(EXTRAS['rpc'])}.")
    tracker = Tracker(args.host, args.port)
    address = address_text(tracker.address)
    text = f"Tracker on {address}. Devices join with: smartmem rpc server --tracker {address} --key NAME"
    return _serving({"address": address}, text, args.with_parent, tracker.serve)


def _server(args: argparse.Namespace) -> Result:
    from ..remote.server import Server
    from ..remote.wire import address_text, parse_address

    thread_count(None)  # an error now instead of in each session
    tracker = parse_address(args.tracker) if args.tracker else None
    server = Server(args.key, tracker, args.host, args.port)
    data = {"address": address_text(server.address), "key": args.key, "tracker": args.tracker}
    text = f"Server on {data['address']}" + (f", key {args.key}" if args.key else "")
    text += f", tracker {args.tracker}." if tracker else "."
    return _serving(data, text, args.with_parent, server.serve)


def _serving(data: dict[str, Any], text: str, with_parent: bool, serve: Callable[[], None]) -> Result:
    def follow() -> None:
        if with_parent:
            from ..remote.processes import die_with

            die_with(parent)
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
        serve()

    parent = os.getppid()
    return Result({**data, "pid": os.getpid()}, lambda console: console.print(text), follow=follow)


def _query(args: argparse.Namespace) -> Result:
    from ..remote.keys import tracker_state
    from ..remote.wire import parse_address

    if not args.tracker:
        raise UserError("`smartmem rpc query` needs to know whom to ask: give --tracker host:port.")
    keys = tracker_state(parse_address(args.tracker))
    data = {"tracker": args.tracker, "keys": {key: state.counts for key, state in keys.items()}}

    def render(console: Console) -> None:
        rows = [(key, s.total, s.free, s.busy, s.pending, " ".join(s.servers)) for key, s in keys.items()]
        columns = ("key", "devices", "free", "busy", "pending", "servers")
        console.print(table(f"Tracker {args.tracker}", columns, rows, numbers=range(1, 5)))
        if not rows:
            console.print(f"No device; one joins with: smartmem rpc server --tracker {args.tracker} --key NAME")

    return Result(data, render)


_ACTIONS = {"tracker": _tracker, "server": _server, "query": _query}

# SPDX-License-Identifier: Apache-2.0
"""``smartmem phone``: register an Android phone on USB as a device of a tracker."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .console import Result, step, table

if TYPE_CHECKING:
    from rich.console import Console

NAME = "phone"
HELP = "prepare an Android phone over adb, so that a tracker has it"
EXAMPLE = """\
  smartmem phone --tracker 127.0.0.1:9190 --key phone --server build-android/tvm_rpc --push build-android/libtvm*.so
  smartmem phone --status                        how warm it is, and how fast its clocks are
  smartmem phone --stop                          end the server, give the ports back

The tracker runs on this machine (smartmem rpc tracker --port 9190). The server is TVM's own in C++, built by you for
the phone (docs/android.md). It listens on the phone's loopback, which adb leads to this machine: ten ports from --port
on, the same on both sides."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--tracker", metavar="ADDRESS", help="host:port of a tracker on this machine")
    parser.add_argument("--key", help="the name under which clients ask for the phone")
    parser.add_argument("--server", type=Path, metavar="FILE", help="TVM's tvm_rpc, built for the phone")
    text = "what the server needs besides, such as libtvm_runtime.so or libc++_shared.so"
    parser.add_argument("--push", type=Path, nargs="+", default=[], metavar="FILE", help=text)
    parser.add_argument("--serial", help="which phone, as `adb devices` names it (default: the only one)")
    parser.add_argument("--port", type=int, default=9090, help="first of ten ports of the server (default: 9090)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--stop", action="store_true", help="end the server, remove the ports")
    instead.add_argument("--status", action="store_true", help="only read temperatures and clocks")


def execute(args: argparse.Namespace) -> Result:
    """Start or stop the server on the phone, or show its state."""
    from ..remote import adb, phone

    wanted = None if args.stop or args.status else _wanted(args)
    with step("Asking the phone"):
        found = adb.find(args.serial)
        if args.stop:
            return _stopped(found.serial, phone.stop(found))
        data: dict[str, Any] = dict(phone.facts(found))
        if wanted:
            data |= {"address": phone.start(found, wanted), "key": args.key, "tracker": args.tracker}
        data |= phone.state(found)
    return Result(data, lambda console: _render(console, data))


def _wanted(args: argparse.Namespace):
    from ..remote.phone import Start
    from ..remote.wire import parse_address

    missing = [f"--{name}" for name in ("tracker", "key", "server") if not getattr(args, name)]
    if missing:
        raise UserError(f"`smartmem phone` lacks {' and '.join(missing)}: give them, or --status, or --stop.")
    wanted = Start(parse_address(args.tracker), args.key, args.server, args.push, args.port)
    wanted.check()
    return wanted


def _stopped(serial: str, ended: bool) -> Result:
    text = f"Phone {serial}: {'the server was ended' if ended else 'no server was running'}."
    return Result({"serial": serial, "stopped": ended}, lambda console: console.print(text))


def _render(console: Console, data: dict[str, Any]) -> None:
    zones = {name: value for name, value in data["zones_celsius"].items() if value is not None}
    hottest = max(zones, key=zones.__getitem__, default=None)
    clocks = [value for value in (data["cpu_mhz"] or {}).values() if value is not None]
    rows = [(name, data[name]) for name in ("model", "abi", "android", "address", "key") if name in data]
    rows += [
        ("battery", _with_unit(data["battery_celsius"], "°C")),
        ("hottest zone", f"{_with_unit(zones[hottest], '°C')} ({hottest})" if hottest else "not readable"),
        ("CPU clocks", f"{min(clocks):g} to {max(clocks):g} MHz" if clocks else "not readable"),
        ("GPU clock", _with_unit(data["gpu_mhz"], "MHz")),
    ]
    console.print(table(f"Phone {data['serial']}", ("", ""), rows))
    if "address" in data:
        console.print(f"Measure on it with: smartmem measure DIR --tracker {data['tracker']} --key {data['key']}")


def _with_unit(value: float | None, unit: str) -> str:
    return "not readable" if value is None else f"{value:g} {unit}"

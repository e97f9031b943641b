# SPDX-License-Identifier: Apache-2.0
"""``smartmem devices``: list the devices of a tracker or of this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .console import Result, step, table

if TYPE_CHECKING:
    from rich.console import Console

NAME = "devices"
HELP = "list the devices of a tracker, or of this machine, with their limits and target rows"
EXAMPLE = """\
  smartmem devices                               this machine's
  smartmem devices --tracker 127.0.0.1:9190      by key: how many are free, and what each free one is

A device that another process uses is counted, and not asked. ``fits`` is the row of smartmem_tvm/tables/targets.py
that a compiler would use, ``~`` one for devices of that kind in general; figures of the driver that differ from it are
listed below."""
_COLUMNS = ("device", "name", "driver", "compiler", "group", "local memory", "images", "fits")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--tracker", metavar="ADDRESS", help="host:port of a tracker (default: this machine's devices)")


def execute(args: argparse.Namespace) -> Result:
    """Query the tracker and its free devices, or this machine's drivers."""
    return _of_tracker(args.tracker) if args.tracker else _here()


def _here() -> Result:
    from ..remote.about import local_devices
    from ..remote.inspect_devices import fitted

    with step("Asking the drivers"):
        import _smartmem_opencl

        _smartmem_opencl.load()
        devices = list(map(fitted, local_devices()))
    return Result({"devices": devices}, lambda console: _render(console, "Devices of this machine", devices))


def _of_tracker(tracker: str) -> Result:
    from ..remote.inspect_devices import tracker_devices

    with step("Asking the devices"):
        keys = tracker_devices(tracker)

    def render(console: Console) -> None:
        columns = ("key", "devices", "free", "busy", "pending")
        rows = [(key, *(each[name] for name in columns[1:])) for key, each in keys.items()]
        console.print(table(f"Tracker {tracker}", columns, rows, numbers=range(1, 5)))
        for key, each in keys.items():
            for server in each["found"]:
                _render_server(console, key, server)
        if not keys:
            console.print(f"No device; one joins with: smartmem rpc server --tracker {tracker} --key NAME")

    return Result({"tracker": tracker, "keys": keys}, render)


def _render_server(console: Console, key: str, server: dict[str, Any]) -> None:
    if problem := server.get("problem"):
        console.print(f"{key}: {problem}")
        return
    version = server["tvm"] or "of a version that it does not tell"
    runs = ", ".join(server["kinds"])
    machine = f", {server['system']} on {server['machine']}" if "machine" in server else ""
    _render(console, f"{key} at {server['address']}: TVM {version}{machine}, runs {runs}", server["devices"])


def _render(console: Console, title: str, devices: list[dict[str, Any]]) -> None:
    from ..remote.inspect_devices import row_text

    console.print(table(title, _COLUMNS, map(_row, devices), numbers=(4, 5)))
    for each in devices:
        if each["measured"]:
            console.print(f"{each['kind']}:{each['index']} would be {row_text(each)}")


def _row(device: dict[str, Any]) -> tuple[Any, ...]:
    sides = [device.get(name) for name in ("image2d_width", "image2d_height", "image_array_depth")]
    images = "x".join(map(str, sides)) if all(sides) else ""
    local = device.get("local_bytes")
    return (
        f"{device['kind']}:{device['index']}",
        device.get("name", "?"),
        device.get("driver", ""),
        device["compiler"],
        device.get("max_work_group_size", ""),
        f"{local / 1024:g} KiB" if local else "",
        images,
        f"{'' if device['exact'] else '~'}{device['row'] or 'none'}",
    )

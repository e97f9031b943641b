# SPDX-License-Identifier: Apache-2.0
"""``smartmem roofline``: show the speed of a target's device, from which bounds of kernels are computed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tune.host import set_threads
from .console import Result, step, table
from .model import TARGET_HELP, add_threads

if TYPE_CHECKING:
    from rich.console import Console

NAME = "roofline"
HELP = "show how fast this machine is: the figures behind the bounds of explain --schedules, bench and report"
EXAMPLE = """\
  smartmem roofline                              what was measured on this machine, or measure it now
  smartmem roofline --again --threads 1          measure it once more, on one thread
  smartmem roofline --target adreno-740          what the tables have on a device of another machine

A machine is measured once for each number of threads, which takes a few seconds, and the figures are kept in the
user's cache folder ($SMARTMEM_SPEED_CACHE names another, 0 none). Measure again when the machine is idle, if it was
busy then: a kernel that takes less than its bound says so."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--target", default="cpu", help=TARGET_HELP)
    parser.add_argument("--again", action="store_true", help="measure also what is kept")
    add_threads(parser)


def execute(args: argparse.Namespace) -> Result:
    """Measure the device, or read a kept measurement."""
    set_threads(args.threads)
    from ..runtime.speed import speed_of
    from ..target import parse_target

    with step("Measuring"):
        speed = speed_of(parse_target(args.target), args.again)
    if speed is None:
        raise UserError(f"The speed of a device for target '{args.target}' is unknown; use cpu, cuda or adreno-740.")
    data = {"target": args.target, **speed.as_dict()}
    return Result(data, lambda console: _render(console, data))


def _render(console: Console, data: dict) -> None:
    threads = f", threads: {data['threads']}" if data["threads"] else ""
    source = "measured" if data["measured"] else "from smartmem_tvm.tables.targets"
    console.print(f"{data['name']}{threads}, {source}. A launch takes {data['launch'] * 1e6:.1f} us.")
    rows = [(name, f"{rate / 1e9:.1f}") for name, rate in data["multiply_adds"].items()]
    console.print(table("Arithmetic", ("type", "G multiply-adds/s"), rows, numbers=(1,)))
    rows = [(name, f"{rate / 1e9:.2f}") for name, rate in data["calls"].items()]
    if rows:
        console.print(table("Functions", ("function", "G calls/s"), rows, numbers=(1,)))
    written = dict(data["written"])
    rows = [(_size(size), f"{rate / 1e9:.1f}", _rate(written.get(size))) for size, rate in data["moved"]]
    console.print(table("Memory", ("bytes touched", "GB/s", "GB/s written"), rows, numbers=(0, 1, 2)))


def _size(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.0f} MiB"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:.1f}"

# SPDX-License-Identifier: Apache-2.0
"""Print kernels far above their roofline bound, as a table and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .console import table

if TYPE_CHECKING:
    from rich.console import Console

_TITLES = ("kernel", "rule", "off", "share", "bound by", "known reason")
_LEAST = 0.01  # share of the time: kernels below it are not listed


def print_slow(console: Console, data: dict) -> None:
    """Print kernels that take more than four times their bound, if a report has times and bounds."""
    from ..analysis.roofline import FAR
    from ..runtime.kernel_bounds import slowest

    if data["speed"] is None:
        console.print("Kernels have no bounds: the speed of the device is unknown.")
    if data["slow_share"] is None:
        return
    found = slowest(data["kernels"], _LEAST)
    rows = [
        (each["kernel"], each["rule"], f"{1 / each['of_roofline']:.1f}x", f"{each['share']:.2%}", each["bound_by"])
        + (each["off"] or "-",)
        for each in found
    ]
    if rows:
        console.print(table(f"More than {FAR:.0f}x off the roofline", _TITLES, rows, numbers=(2, 3)))
    console.print(f"Share of the time in kernels more than {FAR:.0f}x off the roofline: {data['slow_share']:.2%}.")
    without = [each for each in data["kernels"] if each["bound_seconds"] is None]
    if without:
        share, reasons = sum(each["share"] for each in without), dict.fromkeys(each["off"] for each in without)
        console.print(f"Share of the time in kernels without a bound: {share:.2%} ({'; '.join(reasons)}).")

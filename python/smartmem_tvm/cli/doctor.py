# SPDX-License-Identifier: Apache-2.0
"""``smartmem doctor``: check this machine, and name the command that repairs each problem."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from .console import Result, step, table

if TYPE_CHECKING:
    from rich.console import Console

    from ..doctor import Check

NAME = "doctor"
HELP = "check versions, optional packages and devices of this machine"
EXAMPLE = """\
  smartmem doctor

The exit code is 1 if something that every command needs is missing or wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command, which has none."""


def execute(args: argparse.Namespace) -> Result:
    """Run all checks."""
    from ..doctor import diagnose

    with step("Looking around"):
        checks = diagnose()
    ok = all(check.ok for check in checks if check.required)
    data = {"ok": ok, "checks": [asdict(check) for check in checks]}
    return Result(data, lambda console: _render(console, checks, ok), exit_code=0 if ok else 1)


def _render(console: Console, checks: list[Check], ok: bool) -> None:
    rows = [(_mark(check), check.name, check.detail, check.remedy) for check in checks]
    console.print(table("smartmem doctor", ("", "check", "found", "what to do"), rows))
    console.print("Everything needed is here." if ok else "Something needed is missing or wrong: see the last column.")


def _mark(check: Check) -> str:
    if check.ok:
        return "ok"
    return "WRONG" if check.required else "optional"
